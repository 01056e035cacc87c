// cp.async: a thread's copies, and the groups that it waits for.
#include "machine.h"

namespace cuda_on_cpu {

void async_note(const AsyncCopy& copy) { current().copies.push_back(copy); }

void async_commit() {
  Thread& t = current();
  t.copy_groups.push_back(t.copies.size());
}

bool async_next(unsigned groups_left, AsyncCopy& copy) {
  Thread& t = current();
  while (t.copy_groups.size() - t.copy_groups_done > groups_left) {
    if (t.copies_done < t.copy_groups[t.copy_groups_done]) {
      copy = t.copies[t.copies_done++];
      t.needs_proxy_fence = true;
      return true;
    }
    ++t.copy_groups_done;
  }
  if (t.copy_groups_done == t.copy_groups.size() && t.copies_done == t.copies.size()) {
    t.copies.clear();
    t.copy_groups.clear();
    t.copies_done = t.copy_groups_done = 0;
  }
  return false;
}

}  // namespace cuda_on_cpu
