// The system calls of new_file.cc: file_calls.cc has them for POSIX, file_calls_win32.cc for
// Windows. Paths are UTF-8. A call that fails sets errno.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace pb::file_calls {

// Creates a file for writing that only its owner can access. Returns -1 if this fails or the file
// exists already.
int open_new(const std::string& path);

// Writes one or more of the bytes. Returns the number of bytes written, or -1 if this fails.
std::ptrdiff_t write(int file, std::span<const std::byte> bytes);

// Writes all bytes at `offset`, without changing the position of the next write().
bool write_at(int file, size_t offset, std::span<const std::byte> bytes);

// Returns the number of bytes that this user can still write to the file system of the file; a
// large number if it is unknown.
size_t room(int file);

bool close(int file);

// Renames a file. If a file with the new name exists, it is replaced atomically.
bool replace(const std::string& from, const std::string& to);

void remove(const std::string& path);

}  // namespace pb::file_calls
