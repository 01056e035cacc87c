#include <windows.h>

#include "os/mapped_file.h"
#include "os/text_win32.h"

namespace pb {
namespace {

// A Windows handle that is closed at the end of its scope.
class Handle {
 public:
  explicit Handle(HANDLE handle) : handle_(handle) {}
  ~Handle() {
    if (*this) CloseHandle(handle_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  explicit operator bool() const { return handle_ != nullptr && handle_ != INVALID_HANDLE_VALUE; }
  HANDLE get() const { return handle_; }

 private:
  HANDLE handle_;
};

// Returns the reason why an open file cannot be trusted or mapped; "" if there is none. The access
// rights of the folder determine who may write the file; by default the folder is inside the user's
// own.
std::string fault_of(HANDLE file, LARGE_INTEGER* size) {
  BY_HANDLE_FILE_INFORMATION about{};
  if (!GetFileInformationByHandle(file, &about) || !GetFileSizeEx(file, size)) {
    return last_windows_error();
  }
  constexpr DWORD kNotPlain =
      FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_REPARSE_POINT | FILE_ATTRIBUTE_DEVICE;
  if ((about.dwFileAttributes & kNotPlain) != 0) return "is not a plain file";
  return size->QuadPart == 0 ? "is empty" : "";
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path, std::string* problem) {
  problem->clear();
  // The flags open a link itself, so that it can be refused, and allow others to replace the file
  // while it is open.
  const Handle file(CreateFileW(
      wide(path).c_str(), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr, OPEN_EXISTING,
      FILE_FLAG_OPEN_REPARSE_POINT | FILE_FLAG_BACKUP_SEMANTICS, nullptr));
  if (!file) {
    const DWORD error = GetLastError();
    const bool is_absent = error == ERROR_FILE_NOT_FOUND || error == ERROR_PATH_NOT_FOUND;
    if (!is_absent) *problem = path + ": " + last_windows_error();
    return nullptr;
  }
  LARGE_INTEGER size{};
  const std::string fault = fault_of(file.get(), &size);
  if (!fault.empty()) {
    *problem = path + ": " + fault;
    return nullptr;
  }
  const Handle mapping(CreateFileMappingW(file.get(), nullptr, PAGE_READONLY, 0, 0, nullptr));
  const void* data = mapping ? MapViewOfFile(mapping.get(), FILE_MAP_READ, 0, 0, 0) : nullptr;
  if (data == nullptr) {
    *problem = path + ": cannot be mapped: " + last_windows_error();
    return nullptr;
  }
  return std::shared_ptr<const MappedFile>(
      new MappedFile({static_cast<const std::byte*>(data), static_cast<size_t>(size.QuadPart)}));
}

MappedFile::~MappedFile() { UnmapViewOfFile(bytes_.data()); }

void MappedFile::populate(size_t, size_t) const {}

bool MappedFile::in_huge_pages() const { return false; }

void drop_mapped_pages(std::span<const std::byte>) {}

}  // namespace pb
