// Threads that are slow, as on E cores, hold up no part of a product but the one they are in.
#include <atomic>
#include <chrono>
#include <thread>

#include "product_fixture.h"

using namespace pb;
using namespace pb::test;

namespace {

constexpr int kThreads = 4;

// Calls of a kernel. While `hold` is set, all threads but one stay in their first call until `hold`
// others have been finished.
struct Gate {
  std::atomic<int> begun{0}, done{0}, given_up{0};
  int hold = 0;
  decltype(cpu::ProductKernel::tiles) kernel = nullptr;
};
Gate* gate = nullptr;

void gated_tiles(const cpu::GemmArgs& args, int tile_begin, int tile_end, int row_begin,
                 int row_end, void* scratch) {
  const auto last = std::chrono::steady_clock::now() + std::chrono::seconds(60);  // not for ever
  if (++gate->begun < kThreads) {
    while (gate->done < gate->hold && gate->given_up == 0) {
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() > last) ++gate->given_up;
    }
  }
  gate->kernel(args, tile_begin, tile_end, row_begin, row_end, scratch);
  ++gate->done;
}

void expect_no_waiting(const cpu::Kernels& target, int rows, int n_in) {
  const ProductFixture p(1024, n_in, rows, DType::kF32);
  const std::vector<float> w = numbers(static_cast<size_t>(p.n_out) * n_in, 1);
  cpu::Kernels kernels = target;
  kernels.f32.tiles = gated_tiles;
  cpu::CpuBackend alone(1, target), together(kThreads, kernels);
  const Matrix m = p.matrix_of(alone, view_of(w, p.n_out, n_in), true);
  const std::vector<float> expected = p.multiply(alone, target, m, first_rows(rows));

  Gate free;
  gate = &free;
  free.kernel = target.f32.tiles;
  EXPECT(same_bits(p.multiply(together, target, m, first_rows(rows)), expected));
  EXPECT(free.done >= 4 * kThreads);

  Gate held;
  gate = &held;
  held.kernel = target.f32.tiles;
  held.hold = free.done - kThreads + 1;
  EXPECT(same_bits(p.multiply(together, target, m, first_rows(rows)), expected));
  EXPECT_EQ(held.done.load(), free.done.load());
  EXPECT_EQ(held.given_up.load(), 0);
}

}  // namespace

TEST(a_slow_thread_holds_up_no_part_but_its_own) {
  for (const cpu::Kernels* target : runnable_targets()) {
    expect_no_waiting(*target, 1, 2048);  // decode
    expect_no_waiting(*target, 130, 64);  // many rows
  }
}

PB_TEST_MAIN()
