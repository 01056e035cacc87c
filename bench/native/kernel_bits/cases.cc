#include "cases.h"

#include <cstdio>
#include <exception>

#include "base/hash64.h"

namespace pb::bench {
namespace {

void print(const CaseInfo& info, const std::string& rest) {
  std::printf("{\"case\": %s, \"group\": %s, \"mma\": %s, %s}\n", quoted(info.name).c_str(),
              quoted(info.group).c_str(), info.has_mma ? "true" : "false", rest.c_str());
  std::fflush(stdout);
}

}  // namespace

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

void Cases::leave_out(const CaseInfo& info, const std::string& why) {
  print(info, "\"not_run\": " + quoted(why));
}

void Cases::run_bytes(const CaseInfo& info, FunctionRef<std::vector<std::byte>()> run) {
  if (failed_) return;
  try {
    const std::vector<std::byte> bytes = run();
    char hash[32];
    std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(hash64(bytes)));
    print(info, "\"bytes\": " + std::to_string(bytes.size()) + ", \"hash\": \"" + hash + "\"");
    ++n_run_;
  } catch (const std::exception& error) {
    print(info, "\"error\": " + quoted(error.what()));
    failed_ = true;
  }
}

}  // namespace pb::bench
