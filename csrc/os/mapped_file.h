// A file of this user's, mapped for reading.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace pb {

class MappedFile {
 public:
  // Maps the file at `path`. Returns null, with the reason in `problem`, where that fails; for a
  // file that does not exist `problem` stays empty. Symbolic links, anything but a plain file, and
  // files that another user owns or may write are refused: the contents are going to be trusted.
  //
  // A file that is replaced (by rename) stays as it was for those who have mapped it. Reading one
  // that is cut short meanwhile raises SIGBUS, which nothing here can prevent.
  static std::shared_ptr<const MappedFile> open(const std::string& path, std::string* problem);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

  // Reads bytes [begin, end) in and maps their pages, where the system can do so at once.
  void populate(size_t begin, size_t end) const;

  // Returns true if most of the pages mapped so far are huge pages, which can be read as fast as
  // other memory. Newer Linux kernels use huge pages on most file systems.
  bool in_huge_pages() const;

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

// Gives back the page frames that hold `bytes` of a mapped file: they are read again when they are
// touched again. Whole pages, those included that the ends lie in. Not for memory of another kind,
// whose contents this would destroy.
void drop_mapped_pages(std::span<const std::byte> bytes);

}  // namespace pb
