// Packed weights in a file: packed and written at one start of the engine, mapped at the next.
//
// A header of one page, then the buffers one after the other, each on a cache line. The file holds
// no offsets and no sizes of its parts, so that none can be wrong: writer and reader take the same
// walk over the weights, the reader with the sizes that shapes and layout demand. A header that is
// not exactly the expected one, a checksum that differs or a walk that does not end where the file
// does means that the weights are packed anew.
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

// Why a file cannot be used. Caught where weights are loaded, never further up.
struct PackedFileError {
  std::string problem;
};

inline constexpr size_t kMostKeyBytes = 4000;
inline constexpr uint32_t kPackedFileVersion = 1;  // of header and padding

class PackedReader {
 public:
  // Maps the file and checks all of it, on n_threads threads. Returns nullopt without a file.
  // Throws PackedFileError for one that is not whole, not this user's or not what `key` describes.
  static std::optional<PackedReader> open(const std::string& path, const std::string& key,
                                          int n_threads);

  // Returns the next `bytes` of the walk. Throws PackedFileError where the file has fewer.
  AlignedBuffer take(size_t bytes);
  // Reads the flag that put_flag() wrote.
  bool take_flag() { return *take(1).as<std::byte>() != std::byte{0}; }
  // Throws PackedFileError where the file has more.
  void expect_end() const;

  // True if the buffers are parts of the mapped file. Otherwise they are copies in huge pages,
  // because reading weights from small pages costs a fifth of the memory's bandwidth.
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
  // expected: bytes that put() will be given in all, about. No file is begun that would leave the
  // file system nearly full.
  PackedWriter(const std::string& path, const std::string& key, size_t expected);

  // Writes the next buffer of the walk. Does nothing after a failure.
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
