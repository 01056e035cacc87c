// A file that appears under its name whole, or not at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace pb {

// A file written under a temporary name beside `path` and renamed by commit(); without a commit()
// it is removed. Until then `path` is the file that was there before, or none. The first failure is
// kept in problem(), and every later call does nothing. Only the owner can read the file.
class NewFile {
 public:
  explicit NewFile(std::string path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Bytes that the file system has left for this user; a large number where it does not say.
  size_t room() const;
  void write(std::span<const std::byte> bytes);
  void overwrite(size_t offset, std::span<const std::byte> bytes);
  void commit();
  void give_up(const std::string& why);

  bool is_open() const { return file_ >= 0; }
  const std::string& problem() const { return problem_; }

 private:
  void flush();
  void fail();  // with errno
  void close_and_remove();

  std::string path_;
  std::string temporary_;
  std::string problem_;
  int file_ = -1;
  std::vector<std::byte> piece_;  // not yet written
};

}  // namespace pb
