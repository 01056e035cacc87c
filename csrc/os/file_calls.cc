#include "os/file_calls.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <limits>

namespace pb::file_calls {

int open_new(const std::string& path) {
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                S_IRUSR | S_IWUSR);
}

std::ptrdiff_t write(int file, std::span<const std::byte> bytes) {
  return ::write(file, bytes.data(), bytes.size());
}

bool write_at(int file, size_t offset, std::span<const std::byte> bytes) {
  const ssize_t n = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
  return n == static_cast<ssize_t>(bytes.size());
}

size_t room(int file) {
  struct statvfs status{};
  if (fstatvfs(file, &status) != 0) return std::numeric_limits<size_t>::max();
  return static_cast<size_t>(status.f_bavail) * status.f_frsize;
}

bool close(int file) { return ::close(file) == 0; }

bool replace(const std::string& from, const std::string& to) {
  return std::rename(from.c_str(), to.c_str()) == 0;
}

void remove(const std::string& path) { ::unlink(path.c_str()); }

}  // namespace pb::file_calls
