// Reads of mapped files that another program truncates.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace pb {

// While an object of this class exists, a read of `mapped` memory that lies past the end of its
// file yields zeros and does not raise SIGBUS. The caller must compare the file's size afterwards:
// the contents from the first such read to the end of the mapping are lost. SIGBUS for any other
// address goes to the handler that was installed before. Any thread may read; several guards may
// exist at a time.
class TruncationGuard {
 public:
  // mapped: whole mappings, each of which begins at a page and outlives the guard.
  explicit TruncationGuard(const std::vector<std::span<const std::byte>>& mapped);
  ~TruncationGuard();
  TruncationGuard(const TruncationGuard&) = delete;
  TruncationGuard& operator=(const TruncationGuard&) = delete;

 private:
  std::vector<size_t> slots_;  // of the table of guarded ranges
};

}  // namespace pb
