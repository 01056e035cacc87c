#include <windows.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <vector>

#include "os/cpu_topology.h"

namespace pb {

CpuTopology topology_of_windows() {
  DWORD bytes = 0;
  GetLogicalProcessorInformationEx(RelationProcessorCore, nullptr, &bytes);
  std::vector<std::byte> buffer(bytes);
  using Entry = SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX;
  const auto first = reinterpret_cast<Entry*>(buffer.data());
  if (!GetLogicalProcessorInformationEx(RelationProcessorCore, first, &bytes)) bytes = 0;

  CpuTopology topology;
  std::vector<int> classes;  // efficiency class of each core; a higher one is faster
  for (size_t at = 0; at < bytes;) {
    const auto& entry = *reinterpret_cast<const Entry*>(buffer.data() + at);
    for (WORD group = 0; group < entry.Processor.GroupCount; ++group) {
      const auto cpus = static_cast<unsigned long long>(entry.Processor.GroupMask[group].Mask);
      topology.n_cpus += std::popcount(cpus);
    }
    classes.push_back(entry.Processor.EfficiencyClass);
    at += entry.Size;
  }
  topology.n_cores = std::max(1, static_cast<int>(classes.size()));
  topology.n_cpus = std::max(topology.n_cores, topology.n_cpus);
  topology.n_online = topology.n_cpus;
  const auto fastest = std::ranges::max_element(classes);
  topology.n_slow =
      static_cast<int>(std::ranges::count_if(classes, [&](int each) { return each < *fastest; }));
  return topology;
}

}  // namespace pb
