#include "os/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace pb {
namespace {

// Returns the reason why an open file cannot be trusted or mapped; "" if there is none.
std::string fault_of(const struct stat& status) {
  if (!S_ISREG(status.st_mode)) return "is not a plain file";
  if (status.st_uid != geteuid()) return "belongs to another user";
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "may be written by other users";
  if (status.st_size == 0) return "is empty";
  return "";
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path, std::string* problem) {
  problem->clear();
  // With O_NONBLOCK, opening a named pipe does not wait for a process that writes to it.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) {
    if (errno != ENOENT) *problem = path + ": " + std::strerror(errno);
    return nullptr;
  }
  struct stat status{};
  const std::string fault = fstat(file, &status) == 0 ? fault_of(status) : std::strerror(errno);
  void* data = MAP_FAILED;
  if (fault.empty()) {
    data = mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) *problem = path + ": cannot be mapped: " + std::strerror(errno);
    futimens(file, nullptr);  // updates the time of last use; a failure does not matter
  } else {
    *problem = path + ": " + fault;
  }
  ::close(file);
  if (data == MAP_FAILED) return nullptr;
#ifdef __linux__
  // Requests huge pages for pages that are not in memory yet, if the file system supports them.
  madvise(data, static_cast<size_t>(status.st_size), MADV_HUGEPAGE);
#endif
  return std::shared_ptr<const MappedFile>(
      new MappedFile({static_cast<const std::byte*>(data), static_cast<size_t>(status.st_size)}));
}

MappedFile::~MappedFile() { munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

void MappedFile::populate([[maybe_unused]] size_t begin, [[maybe_unused]] size_t end) const {
#ifdef __linux__
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, which older headers lack
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  begin = begin / page * page;
  madvise(const_cast<std::byte*>(bytes_.data()) + begin, std::min(end, bytes_.size()) - begin,
          kPopulateRead);
#endif
}

bool MappedFile::in_huge_pages() const {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  size_t inside = 0, resident = 0, huge = 0, value = 0;
  const auto first = reinterpret_cast<uintptr_t>(bytes_.data());
  while (std::getline(maps, line)) {  // "7f0...-7f1... r--s ...", then lines like "Rss:  12 kB"
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = begin >= first && begin < first + bytes_.size();
    } else if (inside && std::sscanf(line.c_str(), "Rss: %zu", &value) == 1) {
      resident += value;
    } else if (inside && (std::sscanf(line.c_str(), "FilePmdMapped: %zu", &value) == 1 ||
                          std::sscanf(line.c_str(), "ShmemPmdMapped: %zu", &value) == 1)) {
      huge += value;
    }
  }
  return huge > resident / 2;
}

void drop_mapped_pages([[maybe_unused]] std::span<const std::byte> bytes) {
#ifdef __linux__
  if (bytes.empty()) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(bytes.data()) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size();
  // The kernel rounds the length up.
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
#endif
}

}  // namespace pb
