#include <filesystem>
#include <map>
#include <string>

#include "check.h"
#include "fake_cgroups.h"
#include "os/cpu_topology.h"

namespace {

void expect_topology(const pb::CpuTopology& found, int n_cpus, int n_cores, int n_slow) {
  EXPECT_EQ(found.n_cpus, n_cpus);
  EXPECT_EQ(found.n_cores, n_cores);
  EXPECT_EQ(found.n_slow, n_slow);
}

class FakeMachine : public pb::test::FakeCgroups {
 public:
  explicit FakeMachine(const std::string& online) { device("system/cpu/online", online + "\n"); }
  void device(const std::string& file, const std::string& text) {
    write("sys/devices/" + file, text);
  }
  void cpu(int cpu, const std::string& file, const std::string& text) {
    device("system/cpu/cpu" + std::to_string(cpu) + "/" + file, text + "\n");
  }
  // Cores of two threads: cpu and cpu + distance.
  void pairs(int begin, int end, int distance) {
    for (int i = begin; i < end; ++i) {
      const std::string list = std::to_string(i) + "," + std::to_string(i + distance);
      cpu(i, "topology/core_cpus_list", list);
      cpu(i + distance, "topology/core_cpus_list", list);
    }
  }
  void alone(int begin, int end) {
    for (int i = begin; i < end; ++i) cpu(i, "topology/core_cpus_list", std::to_string(i));
  }
  void expect(const std::vector<int>& allowed, int n_cpus, int n_cores, int n_slow) const {
    expect_topology(pb::read_topology(path(), allowed), n_cpus, n_cores, n_slow);
  }
};

std::vector<int> range(int begin, int end) {
  std::vector<int> cpus;
  for (int i = begin; i < end; ++i) cpus.push_back(i);
  return cpus;
}

}  // namespace

TEST(threads_of_a_core_are_one_core) {
  FakeMachine machine("0-7");
  machine.pairs(0, 4, 4);
  machine.expect(range(0, 8), 8, 4, 0);
  machine.expect({0, 1, 2, 3}, 4, 4, 0);
  machine.expect({0, 4}, 2, 1, 0);
  machine.expect({3, 4, 7}, 3, 2, 0);
  EXPECT_EQ(pb::read_topology(machine.path(), {0, 4}).n_online, 8);
}

TEST(older_kernels_have_the_list_by_another_name) {
  FakeMachine machine("0-7");
  for (int i = 0; i < 8; ++i) {  // neighbours, or four threads
    machine.cpu(i, "topology/thread_siblings_list", i < 4 ? "0-3" : i < 6 ? "4-5" : "6-7");
  }
  machine.expect(range(0, 8), 8, 3, 0);
  machine.cpu(5, "topology/core_cpus_list", "5");  // counts for more
  machine.expect(range(0, 8), 8, 4, 0);
}

TEST(e_cores_are_cores_and_slow) {
  FakeMachine machine("0-15");  // 4 P cores of two threads, 6 E cores, 2 of low power
  for (int i = 0; i < 8; i += 2) machine.pairs(i, i + 1, 1);
  machine.alone(8, 16);
  machine.device("cpu_core/cpus", "0-7\n");
  machine.device("cpu_atom/cpus", "8-13\n");
  machine.device("cpu_lowpower/cpus", "14-15\n");
  machine.expect(range(0, 16), 16, 12, 8);
  machine.expect({0, 1, 8, 9}, 4, 3, 2);
  machine.expect({8, 9}, 2, 2, 0);  // all alike
}

TEST(cores_of_less_capacity_are_slow) {
  FakeMachine machine("0-7");
  machine.alone(0, 8);
  for (int i = 0; i < 8; ++i) machine.cpu(i, "cpu_capacity", i < 4 ? "414" : "1024");
  machine.expect(range(0, 8), 8, 8, 4);
  machine.expect(range(0, 4), 4, 4, 0);
  for (int i = 0; i < 4; ++i) machine.cpu(i, "cpu_capacity", "980");  // a favoured core or two
  machine.expect(range(0, 8), 8, 8, 0);
}

TEST(offline_cpus_do_not_count) {
  FakeMachine machine("0-2,5");
  machine.pairs(0, 4, 4);
  machine.expect(range(0, 8), 4, 3, 0);  // 5 is the other thread of 1
  machine.cpu(1, "topology/core_cpus_list", "1,5");
  machine.expect({1, 5, 6}, 2, 1, 0);
  machine.expect({6, 7}, 2, 2, 0);  // which the list of those online must be wrong about
}

TEST(a_cpu_of_which_nothing_is_known_is_a_core) {
  const pb::test::FakeCgroups empty;
  const pb::CpuTopology found = pb::read_topology(empty.path(), {0, 1, 6});
  EXPECT_EQ(found.n_online, 3);
  EXPECT_EQ(found.n_cpus, 3);
  EXPECT_EQ(found.n_cores, 3);
  EXPECT_EQ(pb::read_topology("/no/such/root", {7}).n_cores, 1);
  EXPECT_EQ(pb::read_topology(empty.path(), {}).n_cores, 0);
}

TEST(what_does_not_parse_is_passed_over) {
  for (const char* text :
       {"", "\n", "x", "-", "0-", "-1", "1-0", "0,,1", "0;1", "0-1,", ",", "0 1", "0-1x",
        "0-99999999999999999999", "0-2147483647", "99999999999", "\xff\xfe", "4-5", "0-63"}) {
    FakeMachine machine(text);
    for (const char* file : {"cpu_atom/cpus", "cpu_core/cpus", "cpu_lowpower/cpus"}) {
      machine.device(file, text);
    }
    for (int i = 0; i < 3; ++i) {
      machine.cpu(i, "topology/core_cpus_list", text);
      machine.cpu(i, "topology/thread_siblings_list", text);
      machine.cpu(i, "cpu_capacity", text);
    }
    machine.expect({0, 1, 2}, 3, 3, 0);
  }
}

TEST(folders_where_files_should_be_are_passed_over) {
  FakeMachine machine("0-1");
  for (const char* name : {"topology/core_cpus_list", "cpu_capacity"}) {
    std::filesystem::create_directories(machine.path() + "/sys/devices/system/cpu/cpu0/" + name);
  }
  std::filesystem::create_directories(machine.path() + "/sys/devices/cpu_atom/cpus");
  machine.expect({0, 1}, 2, 2, 0);
}

pb::CpuTopology of_macos(const std::map<std::string, int>& said) {
  return pb::topology_of_macos([&](const std::string& name) {
    const auto found = said.find(name);
    return found == said.end() ? 0 : found->second;
  });
}

TEST(macos_says_how_many_cores_of_which_level_there_are) {
  const pb::CpuTopology found = of_macos({{"hw.logicalcpu", 10},
                                          {"hw.physicalcpu", 10},
                                          {"hw.nperflevels", 2},
                                          {"hw.perflevel0.physicalcpu", 6},
                                          {"hw.perflevel1.physicalcpu", 4}});
  EXPECT_EQ(found.n_online, 10);
  expect_topology(found, 10, 10, 4);
}

TEST(a_mac_with_threads_of_a_core_has_one_level) {
  expect_topology(of_macos({{"hw.logicalcpu", 16}, {"hw.physicalcpu", 8}}), 16, 8, 0);
}

TEST(a_mac_that_says_nothing_or_what_cannot_be_has_a_core) {
  EXPECT_EQ(of_macos({}).n_cores, 1);
  EXPECT_EQ(of_macos({{"hw.logicalcpu", -4}, {"hw.physicalcpu", -4}}).n_cores, 1);
  const pb::CpuTopology found = of_macos({{"hw.logicalcpu", 4},
                                          {"hw.physicalcpu", 9},
                                          {"hw.nperflevels", 3},
                                          {"hw.perflevel1.physicalcpu", 2},
                                          {"hw.perflevel2.physicalcpu", 7}});
  expect_topology(found, 4, 4, 3);
}

PB_TEST_MAIN()
