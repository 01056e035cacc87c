// A file of packed weights: the engine packs and writes them at one start and maps the file at the
// next.
//
// The file consists of a header of one page and the buffers one after the other, each aligned to a
// cache line. The file holds no offsets or sizes of its parts, so none can be wrong: writer and
// reader visit the weights in the same order, and the reader computes the sizes from the shapes and
// the packed layout. If the header is not exactly the expected one, a checksum differs, or the
// weights do not end at the end of the file, the weights are packed again from the checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/hash64.h"
#include "os/mapped_file.h"
#include "os/new_file.h"
#include "os/thread_pool.h"

namespace pb {

// Explains why a file cannot be used. load_weights() catches it and packs the weights again.
struct PackedFileError {
  std::string problem;
};

inline constexpr size_t kMostKeyBytes = 4000;
inline constexpr uint32_t kPackedFileVersion = 1;  // version of header and padding

class PackedReader {
 public:
  // Maps the file and verifies its header and checksums on n_threads threads. Returns nullopt if
  // there is no file. Throws PackedFileError if the file is incomplete, belongs to another user or
  // does not match `key`.
  static std::optional<PackedReader> open(const std::string& path, const std::string& key,
                                          int n_threads);

  // Returns the next buffer, which has `bytes` bytes. Throws PackedFileError if fewer are left.
  AlignedBuffer take(size_t bytes);
  // Reads a flag that put_flag() wrote.
  bool take_flag() { return *take(1).as<std::byte>() != std::byte{0}; }
  // Throws PackedFileError if the file has bytes left.
  void expect_end() const;

  // Returns true if the buffers are parts of the mapped file. Otherwise they are copies in huge
  // pages, because reading weights from small pages costs a fifth of the memory bandwidth.
  bool is_mapped() const { return is_mapped_; }

 private:
  PackedReader(std::shared_ptr<const MappedFile> file, std::unique_ptr<ThreadPool> pool);
  void check(const std::string& key) const;

  std::shared_ptr<const MappedFile> file_;
  std::unique_ptr<ThreadPool> pool_;
  size_t at_;
  bool is_mapped_ = false;
};

class PackedWriter {
 public:
  // Begins a file, unless it would leave the file system nearly full. `expected` is the approximate
  // total size in bytes of the buffers that put() will write.
  PackedWriter(const std::string& path, const std::string& key, size_t expected);

  // Writes the next buffer. Does nothing after a failure.
  void put(const AlignedBuffer& buffer);
  void put_flag(bool flag);
  void commit();
  const std::string& problem() const { return file_.problem(); }

 private:
  void put_blocks(std::span<const std::byte> bytes);
  void end_chunk();

  NewFile file_;
  std::string key_;
  size_t payload_bytes_ = 0;
  Hash64 chunk_;
  size_t in_chunk_ = 0;
  std::vector<uint64_t> chunk_hashes_;
};

}  // namespace pb
