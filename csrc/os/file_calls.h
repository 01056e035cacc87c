// The system calls of new_file.cc: file_calls.cc has them for POSIX, file_calls_win32.cc for
// Windows. Paths are UTF-8. A call that fails sets errno.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace pb::file_calls {

// Opens a file that is not there yet, for writing by its owner alone. Returns -1 where it fails.
int open_new(const std::string& path);

// Writes some of the bytes, at least one. Returns how many; -1 where it fails.
std::ptrdiff_t write(int file, std::span<const std::byte> bytes);

// Writes all bytes at `offset`; what is written next goes where it would have gone.
bool write_at(int file, size_t offset, std::span<const std::byte> bytes);

// Bytes that this user can still write where the file lies; a large number if it is not known.
size_t room(int file);

bool close(int file);

// Gives a file another's name, whose file it replaces in one step.
bool replace(const std::string& from, const std::string& to);

void remove(const std::string& path);

}  // namespace pb::file_calls
