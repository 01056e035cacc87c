// A directory laid out like /sys/fs/cgroup, removed at the end.
#pragma once

#include <filesystem>
#include <string>

#include "temporary_directory.h"

namespace pb::test {

class FakeCgroups {
 public:
  void write(const std::string& file, const std::string& text) {
    const std::string path = directory_.file(file);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    write_file(path, text);
  }
  std::string path() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
};

}  // namespace pb::test
