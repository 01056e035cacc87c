// A file that appears under its name completely or not at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace pb {

// A file that is written under a temporary name in the directory of `path` and renamed by commit().
// Without commit() it is removed. Until commit(), `path` remains as it was. problem() describes the
// first failure, after which all calls do nothing. Only the owner can read the file.
class NewFile {
 public:
  explicit NewFile(std::string path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Returns the bytes that the file system has left for this user; a large number if it is unknown.
  size_t room() const;
  void write(std::span<const std::byte> bytes);
  void overwrite(size_t offset, std::span<const std::byte> bytes);
  void commit();
  void give_up(const std::string& why);

  bool is_open() const { return file_ >= 0; }
  const std::string& problem() const { return problem_; }

 private:
  void flush();
  void fail();  // gives up with the message of errno
  void close_and_remove();

  std::string path_;
  std::string temporary_;
  std::string problem_;
  int file_ = -1;
  std::vector<std::byte> piece_;  // bytes that have not been written to the file yet
};

}  // namespace pb
