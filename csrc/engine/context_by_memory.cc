#include "engine/context_by_memory.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/size_text.h"

namespace pb {

int context_by_memory(const ContextMemory& of) {
  const auto block_size = static_cast<size_t>(of.block_size);
  const auto blocks_of = [&](size_t tokens) { return (tokens + block_size - 1) / block_size; };
  const size_t most =
      std::min(static_cast<size_t>(of.n_sequences) * blocks_of(static_cast<size_t>(of.n_positions)),
               kMostContext / block_size);
  const size_t least = std::min(most, blocks_of(kLeastAutoContext));
  // Bisects: the smallest number of blocks that does not fit is in (fits, too_many]. Numbers above
  // `most` count as not fitting.
  size_t fits = 0, too_many = most + 1;
  while (too_many - fits > 1) {
    const size_t middle = fits + (too_many - fits) / 2;
    (of.bytes_of(static_cast<int>(middle)) <= of.memory ? fits : too_many) = middle;
  }
  if (fits >= least) return static_cast<int>(fits);
  throw Error(ErrorCode::kOutOfMemory,
              "out of memory: " + size_text(of.bytes_of(static_cast<int>(least))) + " wanted, " +
                  size_text(of.memory) + " may be taken; n_ctx='auto' wants KV for at least " +
                  std::to_string(least * block_size) +
                  " tokens: name a smaller n_ctx, lower n_ubatch (buffers), or load with a smaller "
                  "dtype or kv_dtype");
}

}  // namespace pb
