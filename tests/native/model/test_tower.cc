// The vision tower: that its parts count, that neither chunks nor company nor the device change a
// bit, that windows are as tiles, that a failing device ends the work, and that a run allocates
// nothing. That the numbers are those of transformers is
// tests/system/models/test_vision_oracle.py's part.

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "counted_heap.h"
#include "device_double.h"
#include "model/tower.h"
#include "naive_backend.h"
#include "tiny_model.h"

namespace pb::test {
namespace {

constexpr int kPatch = 12, kHidden = 24, kOut = 20, kPositions = 9;

struct TinyTower {
  VisionConfig config;
  TinyModel text;  // its tensors contain those of the tower
};

void add_norm(TinyModel& m, const std::string& name, int size) {
  m.add(name + ".weight", size, 1, 1.0f);
  m.add(name + ".bias", size, 1);
}

void add_linear(TinyModel& m, const std::string& name, int n_out, int n_in) {
  m.add(name + ".weight", n_out, n_in);
  m.add(name + ".bias", n_out, 1);
}

// Three layers with LayerNorm and a rope of two axes; a projector of four rows, and deepstack.
TinyTower tiny_tower() {
  TinyTower t;
  t.text = rotary_model();
  ModelConfig& c = t.config.layers;
  c.architecture = "tower";
  c.vocab_size = 1;
  c.hidden_size = kHidden;
  c.n_layers = 3;
  c.n_heads = c.n_kv_heads = 3;
  c.head_dim = 8;
  c.intermediate_size = 40;
  c.max_position_embeddings = 1 << 20;
  c.norm = NormKind::kLayer;
  c.norm_eps = 1e-6f;
  c.causal = false;
  c.activation = Activation::kGeluTanh;
  c.gated_mlp = false;
  c.position = PositionKind::kRope;
  c.attention_scale = 0.35f;
  c.ropes = {{.inv_freq = {1.0f, 0.1f, 1.0f, 0.1f}, .axes = {0, 0, 1, 1}}};
  c.layer_ropes = {0, 0, 0};
  c.sliding_windows = {0, 0, 0};
  t.config.patch_size = kPatch;
  t.config.n_positions = kPositions;
  t.config.pre_norm = t.config.final_norm = true;
  ProjectorConfig& p = t.config.projector;
  p.group = 4;
  p.norm_before = ProjectorNorm::kRms;
  p.norm_eps = 1e-6f;
  p.linears = {{32, ProjectorActivation::kGelu}, {kOut, ProjectorActivation::kNone}};
  ProjectorConfig deepstack = p;
  deepstack.norm_before = ProjectorNorm::kNone;
  deepstack.norm_after = ProjectorNorm::kLayer;
  t.config.deepstack = {{1, deepstack}};
  TinyModel& m = t.text;
  add_linear(m, "tower.patch", kHidden, kPatch);
  m.add("tower.positions.weight", kPositions, kHidden);
  add_norm(m, "tower.pre_norm", kHidden);
  add_norm(m, "tower.final_norm", kHidden);
  for (int i = 0; i < c.n_layers; ++i) {
    const std::string at = "tower.layers." + std::to_string(i) + ".";
    add_norm(m, at + "attn_norm", kHidden);
    add_norm(m, at + "mlp_norm", kHidden);
    for (const char* name : {"q", "k", "v", "o"}) add_linear(m, at + name, kHidden, kHidden);
    add_linear(m, at + "up", 40, kHidden);
    add_linear(m, at + "down", kHidden, 40);
  }
  m.add("tower.projector.norm_before.weight", kHidden, 1, 1.0f);
  add_norm(m, "tower.deepstack.0.norm_after", 4 * kHidden);
  for (const char* at : {"tower.projector.", "tower.deepstack.0."}) {
    add_linear(m, std::string(at) + "linears.0", 32, 4 * kHidden);
    add_linear(m, std::string(at) + "linears.1", kOut, 32);
  }
  return t;
}

// The numbers of a tile, and views of them.
struct Tile {
  explicit Tile(int n_rows, unsigned seed, std::vector<int32_t> of_windows = {})
      : n(n_rows), windows(std::move(of_windows)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> number;
    for (int i = 0; i < n * kPatch; ++i) patches.push_back(number(random));
    for (int i = 0; i < n; ++i) {
      coordinates.insert(coordinates.end(), {i / 4, i % 4});
      index.insert(index.end(), {i % kPositions, (i + 3) % kPositions});
      weight.insert(weight.end(), {0.75f, 0.25f});
    }
  }

  // The rows [first, first + n_rows) as a tile.
  TowerTile part(int first, int n_rows) const {
    const auto f = static_cast<size_t>(first), r = static_cast<size_t>(n_rows);
    return {.n_rows = n_rows,
            .patches = std::span(patches).subspan(f * kPatch, r * kPatch),
            .coordinates = std::span(coordinates).subspan(2 * f, 2 * r),
            .n_taps = 2,
            .table_index = std::span(index).subspan(2 * f, 2 * r),
            .table_weight = std::span(weight).subspan(2 * f, 2 * r)};
  }
  TowerTile view() const {
    TowerTile tile = part(0, n);
    tile.windows = windows;
    return tile;
  }

  int n;
  std::vector<float> patches, weight;
  std::vector<int32_t> coordinates, index, windows;
};

// A tower with its weights, and a backend.
struct Rig {
  Rig(const TinyTower& t, std::unique_ptr<Backend> made, int n_ubatch = 16, int n_rows = 400)
      : model(t),
        backend(std::move(made)),
        weights(load_weights(model.text.config, model.text.tensors, DType::kF32, *backend, {},
                             &model.config)),
        tower(model.config, *weights.tower, *backend,
              {.n_rows = n_rows, .n_ubatch = n_ubatch, .kv_dtype = DType::kF32}, heartbeat) {}

  std::vector<std::vector<float>> rows(std::vector<TowerTile> tiles, int64_t step = 1 << 30) {
    tower.begin(tiles);
    while (!tower.run(step)) {
    }
    std::vector<std::vector<float>> all;
    for (const TowerRows& taken : tower.take()) {
      EXPECT(taken.failure == nullptr);
      all.emplace_back(taken.values.begin(), taken.values.end());
    }
    return all;
  }

  TinyTower model;
  std::unique_ptr<Backend> backend;
  std::shared_ptr<Heartbeat> heartbeat = std::make_shared<Heartbeat>();
  Weights weights;
  Tower tower;
};

std::vector<float> joined(const std::vector<std::vector<float>>& parts) {
  std::vector<float> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::string refusal(ErrorCode code, const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& e) {
    EXPECT(e.code() == code);
    return e.what();
  }
  return "(nothing thrown)";
}

TEST(the_reference_has_the_same_numbers) {
  const Tile a(48, 1), b(100, 2);
  Rig naive(tiny_tower(), std::make_unique<NaiveBackend>());
  Rig cpu(tiny_tower(), make_cpu_backend(2));
  const auto expected = joined(naive.rows({a.view(), b.view()}));
  const auto found = joined(cpu.rows({a.view(), b.view()}));
  EXPECT_EQ(expected.size(), size_t{37 * 2 * kOut});
  for (size_t i = 0; i < expected.size(); ++i) EXPECT(std::abs(expected[i] - found[i]) < 2e-4f);
}

TEST(neither_chunks_nor_company_nor_threads_change_a_bit) {
  const Tile a(300, 1), b(20, 2), c(4, 3);
  Rig alone(tiny_tower(), make_cpu_backend(1), 512);
  std::vector<float> expected;
  for (const Tile* tile : {&a, &b, &c}) {
    const auto rows = joined(alone.rows({tile->view()}));
    expected.insert(expected.end(), rows.begin(), rows.end());
  }
  for (const int n_ubatch : {1, 16, 64, 512}) {
    for (const int64_t step : {1, 90, 1 << 30}) {
      Rig rig(tiny_tower(), make_cpu_backend(3), n_ubatch);
      EXPECT(joined(rig.rows({a.view(), b.view(), c.view()}, step)) == expected);
    }
  }
}

TEST(a_window_is_as_a_tile) {
  TinyTower all_windowed = tiny_tower();
  all_windowed.config.windowed_layers = {true, true, true};
  const Tile whole(60, 1, {16, 4, 40});
  Rig windowed(all_windowed, make_cpu_backend(2), 12);
  Rig plain(tiny_tower(), make_cpu_backend(2), 16);
  const auto expected =
      joined(plain.rows({whole.part(0, 16), whole.part(16, 4), whole.part(20, 40)}));
  EXPECT(joined(windowed.rows({whole.view()})) == expected);
  TinyTower partly = all_windowed;
  partly.config.windowed_layers[1] = false;
  Rig mixed(partly, make_cpu_backend(2), 12);
  EXPECT(joined(mixed.rows({whole.view()})) != expected);
}

TEST(every_tensor_of_the_tower_counts) {
  const Tile tile(16, 1);
  Rig rig(tiny_tower(), std::make_unique<NaiveBackend>());
  const auto expected = joined(rig.rows({tile.view()}));
  const TinyTower plain = tiny_tower();
  for (const auto& [name, view] : plain.text.tensors) {
    if (!name.starts_with("tower.")) continue;
    if (name.ends_with(".k.bias")) continue;  // adds the same to all scores of a query
    TinyTower changed = tiny_tower();
    const auto n = static_cast<size_t>(view.rows * view.cols);
    for (size_t i = 0; i < n; ++i) changed.text.values(name)[i] *= -0.5f;
    Rig other(changed, std::make_unique<NaiveBackend>());
    if (joined(other.rows({tile.view()})) == expected) fail(__FILE__, __LINE__, name);
  }
}

TEST(averages_are_those_of_a_matrix) {
  TinyTower averaging = tiny_tower();
  averaging.config.deepstack.clear();
  averaging.config.projector.pool = Pool::kMean;
  averaging.config.projector.scale = 3.0f;
  averaging.config.projector.linears = {{kOut, ProjectorActivation::kNone}};
  TinyTower joining = tiny_tower();
  joining.config.deepstack.clear();
  joining.config.projector.linears = averaging.config.projector.linears;
  for (TinyTower* t : {&averaging, &joining}) {
    std::erase_if(t->text.tensors, [](const auto& item) {
      return item.first.starts_with("tower.deepstack.") ||
             item.first.starts_with("tower.projector.linears.");
    });
  }
  add_linear(averaging.text, "tower.projector.linears.0", kOut, kHidden);
  add_linear(joining.text, "tower.projector.linears.0", kOut, 4 * kHidden);
  for (int i = 0; i < kOut; ++i) {
    averaging.text.values("tower.projector.linears.0.bias")[i] = 0.1f * float(i);
    joining.text.values("tower.projector.linears.0.bias")[i] = 0.1f * float(i);
    for (int c = 0; c < 4 * kHidden; ++c) {
      const float w =
          averaging.text.values("tower.projector.linears.0.weight")[i * kHidden + c % kHidden];
      joining.text.values("tower.projector.linears.0.weight")[i * 4 * kHidden + c] = 0.75f * w;
    }
  }
  const Tile tile(120, 1);
  Rig averages(averaging, make_cpu_backend(2), 16);
  Rig products(joining, make_cpu_backend(2), 16);
  const auto found = joined(averages.rows({tile.view()}));
  const auto expected = joined(products.rows({tile.view()}));
  EXPECT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT(std::abs(found[i] - expected[i]) < 1e-4f);
}

TEST(a_device_with_memory_of_its_own_has_the_same_bits) {
  const Tile a(48, 1), b(100, 2);
  Rig host(tiny_tower(), make_cpu_backend(2));
  Rig device(tiny_tower(), std::make_unique<DeviceDouble>(make_cpu_backend(2)));
  const auto expected = host.rows({a.view(), b.view()});
  EXPECT(device.rows({a.view(), b.view()}, 1) == expected);
}

TEST(a_device_that_fails_ends_the_work) {
  const Tile tile(48, 1);
  auto made = std::make_unique<DeviceDouble>(make_cpu_backend(1));
  DeviceDouble& device = *made;
  Rig rig(tiny_tower(), std::move(made));
  const auto expected = rig.rows({tile.view()});
  const std::vector tiles = {tile.view()};
  rig.tower.begin(tiles);
  EXPECT(!rig.tower.run(1));
  device.fail();
  refusal(ErrorCode::kEngine, [&] { rig.tower.run(1); });
  EXPECT(refusal(ErrorCode::kInvalidRequest, [&] { rig.tower.run(1); }).find("no tiles") !=
         std::string::npos);
  EXPECT(rig.rows({tile.view()}) == expected);
}

TEST(tiles_that_are_not_finite_leave_no_trace) {
  Tile bad(48, 1);
  const Tile good(100, 2);
  Rig rig(tiny_tower(), make_cpu_backend(2));
  const auto expected = rig.rows({good.view()});
  bad.patches[5] = std::numeric_limits<float>::infinity();
  const std::vector tiles = {bad.view(), good.view()};
  rig.tower.begin(tiles);
  EXPECT(rig.tower.run(1 << 30));
  const auto taken = rig.tower.take();
  EXPECT(taken[0].failure != nullptr);
  EXPECT(taken[1].failure == nullptr);
  EXPECT(std::ranges::equal(taken[1].values, expected[0]));
  EXPECT(rig.rows({good.view()}) == expected);
}

TEST(a_run_allocates_nothing_and_beats) {
  const Tile a(48, 1), b(100, 2);
  Rig rig(tiny_tower(), make_cpu_backend(2));
  const std::vector tiles = {a.view(), b.view()};
  rig.rows(tiles);
  rig.tower.begin(tiles);
  const int64_t allocations = n_allocations, beats = rig.heartbeat->count();
  while (!rig.tower.run(1)) {
  }
  EXPECT_EQ(n_allocations - allocations, 0);
  EXPECT_EQ(rig.heartbeat->count() - beats, 60);  // 10 chunks in 6 halves of layers
}

TEST(many_small_tiles_fit) {
  const Tile tile(4, 1);
  Rig rig(tiny_tower(), make_cpu_backend(1));
  const std::vector<TowerTile> tiles(100, tile.view());
  const auto rows = rig.rows(tiles);
  for (const auto& each : rows) EXPECT(each == rows[0]);
  const std::vector<TowerTile> too_many(101, tile.view());
  EXPECT(refusal(ErrorCode::kInvalidRequest, [&] { rig.tower.begin(too_many); }).find("404") !=
         std::string::npos);
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
