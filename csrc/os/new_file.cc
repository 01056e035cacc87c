#include "os/new_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "os/file_calls.h"

namespace pb {

namespace {

// The file is written in pieces of this size, at multiples of it. A file system that supports huge
// pages in its cache then uses them for the file, and reading the mapped file is as fast as reading
// memory.
constexpr size_t kPiece = size_t{8} << 20;

}  // namespace

NewFile::NewFile(std::string path) : path_(std::move(path)) {
  temporary_ = path_ + "." + std::to_string(getpid()) + "-" +
               std::to_string(std::random_device{}()) + ".tmp";
  file_ = file_calls::open_new(temporary_);
  if (file_ < 0) problem_ = temporary_ + ": " + std::strerror(errno);
  piece_.reserve(is_open() ? kPiece : 0);
}

NewFile::~NewFile() { close_and_remove(); }

size_t NewFile::room() const {
  return is_open() ? file_calls::room(file_) : std::numeric_limits<size_t>::max();
}

void NewFile::write(std::span<const std::byte> bytes) {
  while (is_open() && !bytes.empty()) {
    const auto some = bytes.first(std::min(bytes.size(), kPiece - piece_.size()));
    piece_.insert(piece_.end(), some.begin(), some.end());
    bytes = bytes.subspan(some.size());
    if (piece_.size() == kPiece) flush();
  }
}

void NewFile::flush() {
  std::span<const std::byte> left(piece_);
  while (is_open() && !left.empty()) {
    const std::ptrdiff_t n = file_calls::write(file_, left);
    if (n > 0) {
      left = left.subspan(static_cast<size_t>(n));
    } else if (n == 0 || errno != EINTR) {
      fail();
    }
  }
  piece_.clear();
}

void NewFile::overwrite(size_t offset, std::span<const std::byte> bytes) {
  flush();
  if (is_open() && !file_calls::write_at(file_, offset, bytes)) fail();
}

void NewFile::commit() {
  flush();
  if (!is_open()) return;
  // Closing can report errors that writing did not (on a network file system, or with a quota).
  const bool is_closed = file_calls::close(std::exchange(file_, -1));
  if (is_closed && file_calls::replace(temporary_, path_)) return;
  problem_ = path_ + ": " + std::strerror(errno);
  file_calls::remove(temporary_);
}

void NewFile::give_up(const std::string& why) {
  if (!is_open()) return;
  problem_ = path_ + ": " + why;
  close_and_remove();
}

void NewFile::fail() {
  const int error = errno;
  give_up(std::strerror(error));
}

void NewFile::close_and_remove() {
  if (!is_open()) return;
  file_calls::close(std::exchange(file_, -1));
  file_calls::remove(temporary_);
}

}  // namespace pb
