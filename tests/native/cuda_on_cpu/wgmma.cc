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
  uint64_t tiles[2];
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

// Number k of a half's, or of a row's, words.
uint16_t element(const uint64_t* words, unsigned k) {
  return static_cast<uint16_t>(words[k / 4] >> 16 * (k % 4));
}

// Where number i of thread t's accumulators lies in the product.
unsigned row_of(unsigned t, unsigned i) { return t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8; }
unsigned column_of(unsigned t, unsigned i) { return i / 4 * 8 + t % 4 * 2 + i % 2; }

// sums += a b^T, tile by tile: Hopper adds as its mma.sync does.
void multiply_product(const WgmmaProduct& product, float (&sums)[kWarpgroup][64]) {
  float c[64][128];
  for (unsigned t = 0; t < kWarpgroup; ++t) {
    for (unsigned i = 0; i < 64; ++i) c[row_of(t, i)][column_of(t, i)] = sums[t][i];
  }
  const MmaModel model = m.options.mma == MmaModel::kSequential ? m.options.mma : MmaModel::kHopper;
  MmaTile tile;
  for (unsigned row = 0; row < 64; row += 16) {
    for (unsigned i = 0; i < 16; ++i) {
      for (unsigned k = 0; k < 16; ++k) {
        tile.a[i][k] = element(product.parts[2 * (row + i) + k / 8].a, k % 8);
      }
    }
    for (unsigned column = 0; column < 128; column += 8) {
      for (unsigned j = 0; j < 8; ++j) {
        for (unsigned k = 0; k < 16; ++k) {
          tile.b[k][j] = element(product.parts[column + j].b[k / 8], k % 8);
        }
        for (unsigned i = 0; i < 16; ++i) tile.c[i][j] = c[row + i][column + j];
      }
      multiply(tile, MmaInput::kBf16, model);
      for (unsigned i = 0; i < 16; ++i) {
        for (unsigned j = 0; j < 8; ++j) c[row + i][column + j] = tile.c[i][j];
      }
    }
  }
  for (unsigned t = 0; t < kWarpgroup; ++t) {
    for (unsigned i = 0; i < 64; ++i) sums[t][i] = c[row_of(t, i)][column_of(t, i)];
  }
}

}  // namespace

void proxy_fence() {
  current().needs_proxy_fence = false;
  fence_mbarriers();
}

void wgmma_m64n128k16(float (&d)[64], uint64_t a, uint64_t b, const WgmmaPart& part) {
  const Operands operands{d, {a, b}, part};
  meet(operands, "wgmma", [a, b](Warpgroup& group) {
    for (unsigned i = 0; i < m.n_threads; ++i) {
      if (m.threads[i].needs_proxy_fence) {
        fail("wgmma after cp.async without fence.proxy.async in thread " + std::to_string(i));
      }
    }
    WgmmaProduct& product = group.started.emplace_back();
    product.tiles[0] = a;
    product.tiles[1] = b;
    for (unsigned t = 0; t < kWarpgroup; ++t) {
      const Operands& from = brought(group, t);
      if (from.tiles[0] != a || from.tiles[1] != b) fail("wgmma: threads name different operands");
      product.d[t] = from.d;
      product.parts[t] = from.part;
    }
    if (group.started.size() - 1 > group.n_done) {  // others are under way
      if (group.started[group.started.size() - 2].d[0] != product.d[0]) {
        fail("wgmma: other accumulators while some are under way: not modelled");
      }
      return;
    }
    for (unsigned t = 0; t < kWarpgroup; ++t) {
      for (int i = 0; i < 64; ++i) {
        group.sums[t][i] = product.d[t][i];
        product.d[t][i] = std::bit_cast<float>(~0u);
      }
    }
  });
}

void wgmma_commit() {
  Thread& t = current();
  Warpgroup& group = warpgroup();
  if (++t.wgmma_groups > group.groups.size()) group.groups.push_back(group.started.size());
}

bool wgmma_next(unsigned groups_left, uint64_t (&tiles)[2]) {
  Thread& t = current();
  const Warpgroup& group = warpgroup();
  if (t.wgmma_groups <= groups_left) return false;
  if (t.wgmma_seen >= group.groups[t.wgmma_groups - groups_left - 1]) return false;
  tiles[0] = group.started[t.wgmma_seen].tiles[0];
  tiles[1] = group.started[t.wgmma_seen].tiles[1];
  ++t.wgmma_seen;
  return true;
}

void wgmma_finish(const WgmmaPart& part) {
  const Operands operands{nullptr, {0, 0}, part};
  meet(operands, "wgmma.wait_group", [](Warpgroup& group) {
    const WgmmaProduct& product = group.started[group.n_done++];
    for (unsigned t = 0; t < kWarpgroup; ++t) {
      if (brought(group, t).part != product.parts[t]) {
        fail("wgmma: an operand was changed while it was under way");
      }
    }
    ++m.counters.wgmmas;
    multiply_product(product, group.sums);
    if (group.n_done < group.started.size()) return;  // more are under way
    for (unsigned t = 0; t < kWarpgroup; ++t) {
      for (int i = 0; i < 64; ++i) product.d[t][i] = group.sums[t][i];
    }
  });
}

}  // namespace cuda_on_cpu
