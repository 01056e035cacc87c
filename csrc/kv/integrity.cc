// KvCache::check_integrity: what kv_cache.h says always holds, recounted from the sequences up.

#include <algorithm>
#include <string>

#include "base/error.h"
#include "kv/kv_cache.h"

namespace pb {

void KvCache::check_integrity() const {
  const auto check = [](bool holds, const auto&... what) {
    if (!holds) throw Error(ErrorCode::kEngine, (std::string() + ... + what));
  };
  const size_t block = static_cast<size_t>(block_size_);
  std::vector<int> holders(static_cast<size_t>(total_pages()), 0);
  std::vector<bool> is_written(holders.size(), false);  // by a reservation that is under way

  for (int seq_id = 0; seq_id < n_parallel(); ++seq_id) {
    const Sequence& sequence = sequences_[static_cast<size_t>(seq_id)];
    const std::string name = "sequence " + std::to_string(seq_id);
    if (sequence.name_space == nullptr) {
      check(sequence.tokens.empty() && sequence.pages.empty() && sequence.n_reserved == 0 &&
                sequence.replaced_page == kNone,
            name, " is free and holds something");
      continue;
    }
    check(sequence.length() >= 0 && sequence.tokens.size() <= static_cast<size_t>(max_length_),
          name, " has a wrong length");
    check(sequence.pages.size() == static_cast<size_t>(pages_for(sequence.tokens.size())), name,
          " has ", std::to_string(sequence.pages.size()), " pages for ",
          std::to_string(sequence.tokens.size()), " tokens");
    for (const int page : sequence.pages) {
      check(page >= 0 && page < total_pages(), name, " holds page ", std::to_string(page),
            ", which does not exist");
      ++holders[static_cast<size_t>(page)];
    }
    if (sequence.replaced_page != kNone) ++holders[static_cast<size_t>(sequence.replaced_page)];

    const size_t length = static_cast<size_t>(sequence.length());
    int parent = PrefixIndex::kNone;
    for (size_t i = 0; i < length / block; ++i) {
      const int page = sequence.pages[i];
      const auto content = std::span(sequence.tokens).subspan(i * block, block);
      check(index_.contains(page) && index_.matches(page, sequence.name_space, parent, content),
            name, " fills page ", std::to_string(page),
            ", which is not in the index as it should be");
      parent = page;
    }
    if (sequence.n_reserved == 0) continue;
    for (size_t i = length / block; i < sequence.pages.size(); ++i) {
      is_written[static_cast<size_t>(sequence.pages[i])] = true;
    }
  }

  int n_used = 0;
  for (int page = 0; page < total_pages(); ++page) {
    const int n_holders = holders[static_cast<size_t>(page)];
    const std::string name = "page " + std::to_string(page);
    check(pool_.refcount(page) == n_holders, name, " has reference count ",
          std::to_string(pool_.refcount(page)), " and ", std::to_string(n_holders), " holders");
    check(n_holders == 0 || !pool_.is_cached(page), name, " is cached and held");
    check(!pool_.is_cached(page) || index_.contains(page), name, " is cached and not in the index");
    check(n_holders > 0 || pool_.is_cached(page) || !index_.contains(page), name,
          " is free and in the index");
    check(!is_written[static_cast<size_t>(page)] || (n_holders == 1 && !index_.contains(page)),
          name, " is being written to and is shared or in the index");
    if (n_holders > 0) ++n_used;
  }
  check(free_pages() + cached_pages() + n_used == total_pages(), "free ",
        std::to_string(free_pages()), " + cached ", std::to_string(cached_pages()), " + used ",
        std::to_string(n_used), " is not the total of ", std::to_string(total_pages()));
  pool_.check_integrity();
  index_.check_integrity();
}

}  // namespace pb
