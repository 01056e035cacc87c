#include "base/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

namespace pb {

namespace {

// Written at a time, from a multiple of it: the system then keeps the file in huge pages, where it
// does so at all, and whoever maps it reads it as fast as memory.
constexpr size_t kPiece = size_t{8} << 20;

}  // namespace

NewFile::NewFile(std::string path) : path_(std::move(path)) {
  temporary_ = path_ + "." + std::to_string(getpid()) + "-" +
               std::to_string(std::random_device{}()) + ".tmp";
  file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                 S_IRUSR | S_IWUSR);
  if (file_ < 0) problem_ = temporary_ + ": " + std::strerror(errno);
  piece_.reserve(is_open() ? kPiece : 0);
}

NewFile::~NewFile() { close_and_remove(); }

size_t NewFile::room() const {
  struct statvfs status{};
  if (!is_open() || fstatvfs(file_, &status) != 0) return std::numeric_limits<size_t>::max();
  return static_cast<size_t>(status.f_bavail) * status.f_frsize;
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
    const ssize_t n = ::write(file_, left.data(), left.size());
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
  if (!is_open()) return;
  const ssize_t n = ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
  if (n != static_cast<ssize_t>(bytes.size())) fail();
}

void NewFile::commit() {
  flush();
  if (!is_open()) return;
  // Closing can bring up what writing did not (a network file system, a quota).
  const int closed = ::close(std::exchange(file_, -1));
  if (closed == 0 && std::rename(temporary_.c_str(), path_.c_str()) == 0) return;
  problem_ = path_ + ": " + std::strerror(errno);
  ::unlink(temporary_.c_str());
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
  ::close(std::exchange(file_, -1));
  ::unlink(temporary_.c_str());
}

}  // namespace pb
