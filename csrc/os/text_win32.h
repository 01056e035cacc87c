// Text on Windows: conversion from UTF-8 to UTF-16, and messages of errors.
#pragma once

#include <string>

namespace pb {

std::wstring wide(const std::string& utf8);

// Returns the message of GetLastError().
std::string last_windows_error();

}  // namespace pb
