#include <fcntl.h>
#include <io.h>
#include <sys/stat.h>
#include <windows.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "os/file_calls.h"
#include "os/text_win32.h"

namespace pb::file_calls {

// The file inherits the access rights of the user's folders, so only its owner can read it. Windows
// ignores POSIX modes.
int open_new(const std::string& path) {
  return _wopen(wide(path).c_str(), _O_WRONLY | _O_CREAT | _O_EXCL | _O_BINARY | _O_NOINHERIT,
                _S_IREAD | _S_IWRITE);
}

std::ptrdiff_t write(int file, std::span<const std::byte> bytes) {
  constexpr size_t kMost = size_t{1} << 30;  // _write counts bytes in an int
  return _write(file, bytes.data(), static_cast<unsigned>(std::min(bytes.size(), kMost)));
}

bool write_at(int file, size_t offset, std::span<const std::byte> bytes) {
  const int64_t here = _telli64(file);
  if (here < 0 || _lseeki64(file, static_cast<int64_t>(offset), SEEK_SET) < 0) return false;
  const bool is_written = write(file, bytes) == static_cast<std::ptrdiff_t>(bytes.size());
  return _lseeki64(file, here, SEEK_SET) >= 0 && is_written;
}

size_t room(int file) {
  const auto unknown = std::numeric_limits<size_t>::max();
  wchar_t path[MAX_PATH + 1] = {};
  const auto handle = reinterpret_cast<HANDLE>(_get_osfhandle(file));
  const DWORD length = GetFinalPathNameByHandleW(handle, path, MAX_PATH, FILE_NAME_NORMALIZED);
  if (length == 0 || length > MAX_PATH) return unknown;
  std::wstring folder(path, length);
  folder.resize(folder.find_last_of(L'\\') + 1);
  ULARGE_INTEGER bytes{};
  return GetDiskFreeSpaceExW(folder.c_str(), &bytes, nullptr, nullptr) ? bytes.QuadPart : unknown;
}

bool close(int file) { return _close(file) == 0; }

bool replace(const std::string& from, const std::string& to) {
  if (MoveFileExW(wide(from).c_str(), wide(to).c_str(), MOVEFILE_REPLACE_EXISTING)) return true;
  errno = EACCES;  // the most frequent reason: the existing file is mapped
  return false;
}

void remove(const std::string& path) { DeleteFileW(wide(path).c_str()); }

}  // namespace pb::file_calls
