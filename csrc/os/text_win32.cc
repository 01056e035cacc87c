#include "os/text_win32.h"

#include <windows.h>

#include <system_error>

namespace pb {

std::wstring wide(const std::string& utf8) {
  const int bytes = static_cast<int>(utf8.size());
  std::wstring text(
      static_cast<size_t>(MultiByteToWideChar(CP_UTF8, 0, utf8.data(), bytes, nullptr, 0)), L'\0');
  MultiByteToWideChar(CP_UTF8, 0, utf8.data(), bytes, text.data(), static_cast<int>(text.size()));
  return text;
}

std::string last_windows_error() {
  return std::system_category().message(static_cast<int>(GetLastError()));
}

}  // namespace pb
