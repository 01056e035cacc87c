// A file of this user, mapped for reading.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace pb {

class MappedFile {
 public:
  // Maps the file at `path`. Returns null if this fails, with the reason in `problem`, which
  // remains empty if the file does not exist. Symbolic links, files that are not regular, and files
  // that another user owns or may write are refused, because the contents will be trusted.
  //
  // If the file is replaced by rename, the mapping still has the old contents. If the file is
  // truncated while it is mapped, reading raises SIGBUS; this cannot be prevented.
  static std::shared_ptr<const MappedFile> open(const std::string& path, std::string* problem);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

  // Reads bytes [begin, end) from the file and maps their pages, if the system supports doing this
  // at once.
  void populate(size_t begin, size_t end) const;

  // Returns true if most of the pages mapped so far are huge pages, which can be read as fast as
  // anonymous memory. Newer Linux kernels use huge pages on most file systems.
  bool in_huge_pages() const;

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

// Frees the page frames with `bytes` of a mapped file. The next access reads them from the file
// again. Whole pages are freed, including the first and the last one. Must not be called for other
// memory, because the contents would be lost.
void drop_mapped_pages(std::span<const std::byte> bytes);

}  // namespace pb
