// wgmma: asynchronous products of a warpgroup.
#include <bit>

#include "machine.h"

namespace cuda_on_cpu {
namespace {

Warpgroup& warpgroup() { return m.warpgroups[current().number / kWarpgroup]; }
unsigned first_thread() { return current().number / kWarpgroup * kWarpgroup; }

// What each thread brings to an operation of the warpgroup. On its stack, while it waits.
struct Operands {
  float* d;
  const WgmmaCall& call;
  const WgmmaPart& part;
};

// Waits for all threads of the warpgroup; the last one does `together` for all of them.
template <typename Together>
void meet(const Operands& operands, const char* what, Together together) {
  Thread& t = current();
  if (first_thread() + kWarpgroup > m.n_threads) fail(std::string(what) + ": no whole warpgroup");
  Warpgroup& group = warpgroup();
  group.brought[t.number % kWarpgroup] = &operands;
  t.where = {"", 0, what};
  if (++group.arrived < kWarpgroup) {
    t.state = State::kAtWarp;
    yield();
    t.state = State::kReady;
    return;
  }
  group.arrived = 0;
  together(group);
  for (unsigned i = 0; i < kWarpgroup / kWarp; ++i) {
    const unsigned warp = first_thread() / kWarp + i;
    make_ready(warp, warp == t.warp ? ~(1u << t.lane) : ~0u);
  }
}

const Operands& brought(const Warpgroup& group, unsigned thread) {
  return *static_cast<const Operands*>(group.brought[thread]);
}

// Number k of some words.
uint16_t element(const uint64_t* words, unsigned k) {
  return static_cast<uint16_t>(words[k / 4] >> 16 * (k % 4));
}

uint16_t a_element(const WgmmaProduct& product, unsigned row, unsigned k) {
  if (product.calls[0].a_registers == nullptr) {
    return element(product.parts[2 * row + k / 8].a, k % 8);
  }
  const unsigned t = row / 16 * 32 + row % 8 * 4 + k % 8 / 2;
  const unsigned number = k / 8 * 2 + row % 16 / 8;  // of the register
  return element(product.parts[t].a, 2 * number + k % 2);
}

uint16_t b_element(const WgmmaProduct& product, unsigned k, unsigned column) {
  const WgmmaCall& call = product.calls[0];
  if (!call.b_in_rows) return element(product.parts[column].b[k / 8], k % 8);
  const WgmmaPart& part = product.parts[k * (call.n / 16) + column / 16];
  return element(part.b[column % 16 / 8], column % 8);
}

// Where number i of thread t's accumulators lies in the product.
unsigned row_of(unsigned t, unsigned i) { return t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8; }
unsigned column_of(unsigned t, unsigned i) { return i / 4 * 8 + t % 4 * 2 + i % 2; }

// sums (+)= a b, tile by tile: Hopper adds as its mma.sync does.
void multiply_product(const WgmmaProduct& product, float (&sums)[kWarpgroup][64]) {
  const WgmmaCall& call = product.calls[0];
  float c[64][128];
  for (unsigned t = 0; t < kWarpgroup; ++t) {
    for (unsigned i = 0; i < call.n / 2; ++i) {
      c[row_of(t, i)][column_of(t, i)] = call.adds ? sums[t][i] : 0.0f;
    }
  }
  const MmaModel model = m.options.mma == MmaModel::kSequential ? m.options.mma : MmaModel::kHopper;
  MmaTile tile;
  for (unsigned row = 0; row < 64; row += 16) {
    for (unsigned i = 0; i < 16; ++i) {
      for (unsigned k = 0; k < 16; ++k) tile.a[i][k] = a_element(product, row + i, k);
    }
    for (unsigned column = 0; column < call.n; column += 8) {
      for (unsigned j = 0; j < 8; ++j) {
        for (unsigned k = 0; k < 16; ++k) tile.b[k][j] = b_element(product, k, column + j);
        for (unsigned i = 0; i < 16; ++i) tile.c[i][j] = c[row + i][column + j];
      }
      multiply(tile, call.input, model);
      for (unsigned i = 0; i < 16; ++i) {
        for (unsigned j = 0; j < 8; ++j) c[row + i][column + j] = tile.c[i][j];
      }
    }
  }
  for (unsigned t = 0; t < kWarpgroup; ++t) {
    for (unsigned i = 0; i < call.n / 2; ++i) sums[t][i] = c[row_of(t, i)][column_of(t, i)];
  }
}

bool same_operands(const WgmmaCall& x, const WgmmaCall& y) {
  return x.n == y.n && x.input == y.input && x.adds == y.adds && x.b_in_rows == y.b_in_rows &&
         (x.a_registers == nullptr) == (y.a_registers == nullptr) && x.a == y.a && x.b == y.b;
}

// Those under way that are the threads' registers, or free ones.
unsigned find_accumulators(const Warpgroup& group) {
  unsigned number = kMostAccumulators;
  for (unsigned i = 0; i < kMostAccumulators; ++i) {
    const WgmmaAccumulators& accumulators = group.accumulators[i];
    if (accumulators.n_products == 0) {
      number = i;
    } else if (accumulators.d[0] == brought(group, 0).d) {
      return i;
    }
  }
  if (number == kMostAccumulators) {
    fail("wgmma: more accumulators under way than the emulator models");
  }
  return number;
}

}  // namespace

void proxy_fence() {
  current().needs_proxy_fence = false;
  fence_mbarriers();
}

void wgmma(float* d, const WgmmaCall& call, const WgmmaPart& part) {
  meet({d, call, part}, "wgmma", [](Warpgroup& group) {
    for (unsigned i = 0; i < m.n_threads; ++i) {
      if (m.threads[i].needs_proxy_fence) {
        fail("wgmma after cp.async without fence.proxy.async in thread " + std::to_string(i));
      }
    }
    if (group.n_started - group.n_done == kMostProducts) {
      fail("wgmma: more products under way than the emulator models");
    }
    WgmmaProduct& product = group.product(group.n_started++);
    product.accumulators = find_accumulators(group);
    WgmmaAccumulators& accumulators = group.accumulators[product.accumulators];
    for (unsigned t = 0; t < kWarpgroup; ++t) {
      const Operands& from = brought(group, t);
      product.calls[t] = from.call;
      product.parts[t] = from.part;
      if (!same_operands(product.calls[t], product.calls[0])) {
        fail("wgmma: threads name different operands");
      }
      if (accumulators.n_products > 0) continue;
      accumulators.d[t] = from.d;
      for (unsigned i = 0; i < from.call.n / 2; ++i) {
        accumulators.sums[t][i] = from.d[i];
        from.d[i] = std::bit_cast<float>(~0u);
      }
    }
    ++accumulators.n_products;
  });
}

void wgmma_commit() {
  Thread& t = current();
  Warpgroup& group = warpgroup();
  if (++t.wgmma_groups <= group.groups.size()) return;
  group.groups.push_back(group.n_started);
}

bool wgmma_next(unsigned groups_left, WgmmaCall& call) {
  Thread& t = current();
  Warpgroup& group = warpgroup();
  if (t.wgmma_groups <= groups_left) return false;
  if (t.wgmma_seen >= group.groups[t.wgmma_groups - groups_left - 1]) return false;
  call = group.product(t.wgmma_seen++).calls[t.number % kWarpgroup];
  return true;
}

void wgmma_finish(const WgmmaPart& part) {
  meet({nullptr, {}, part}, "wgmma.wait_group", [](Warpgroup& group) {
    const WgmmaProduct& product = group.product(group.n_done);
    for (unsigned t = 0; t < kWarpgroup; ++t) {
      if (brought(group, t).part != product.parts[t]) {
        fail("wgmma: an operand was changed while it was under way");
      }
    }
    ++m.counters.wgmmas;
    WgmmaAccumulators& accumulators = group.accumulators[product.accumulators];
    multiply_product(product, accumulators.sums);
    const bool is_last = --accumulators.n_products == 0;
    for (unsigned t = 0; t < kWarpgroup && is_last; ++t) {
      for (unsigned i = 0; i < product.calls[0].n / 2; ++i) {
        accumulators.d[t][i] = accumulators.sums[t][i];
      }
    }
    ++group.n_done;
  });
}

}  // namespace cuda_on_cpu
