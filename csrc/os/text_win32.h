// Text of Windows: UTF-16 of UTF-8, and what an error says.
#pragma once

#include <string>

namespace pb {

std::wstring wide(const std::string& utf8);

// Returns the message of GetLastError().
std::string last_windows_error();

}  // namespace pb
