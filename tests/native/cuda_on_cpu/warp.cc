// Operations of a warp: the lanes of a mask meet, and each reads what it is to get.
#include <bit>

#include "machine.h"

namespace cuda_on_cpu {
namespace {

void copy_bytes(void* to, const void* from, unsigned n) {
  auto* a = static_cast<volatile unsigned char*>(to);
  const auto* b = static_cast<const volatile unsigned char*>(from);
  for (unsigned i = 0; i < n; ++i) a[i] = b[i];
}

// The current lane's part in an operation of the lanes of a mask. Between the constructor and
// wait() the lane leaves in data() what it brings; after wait() it finds there what all have
// brought, and the destructor ends its part.
class Arrival {
 public:
  Arrival(unsigned mask, const Where& where)
      : warp_(m.warps[current().warp]), bit_(1u << current().lane) {
    if ((mask & bit_) == 0) fail(text_of(where) + ": the lane is not in its mask");
    slot_ = find_slot(mask, where);
    current().where = where;
  }
  ~Arrival() {
    Meeting& meeting = warp_.meetings[slot_];
    meeting.unread &= ~bit_;
    if (meeting.unread == 0 && meeting.arrived == 0) warp_.taken &= ~(1u << slot_);
  }
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;

  MeetingData& data() { return warp_.data[slot_]; }

  // Waits for the others. The last lane computes the result of all: combine(MeetingData&).
  template <typename Combine>
  void wait(Combine combine) {
    Thread& t = current();
    Meeting& meeting = warp_.meetings[slot_];
    meeting.arrived |= bit_;
    if (meeting.arrived != meeting.mask) {
      t.state = State::kAtWarp;
      yield();
      t.state = State::kReady;
      return;
    }
    meeting.arrived = 0;
    meeting.unread = meeting.mask;
    warp_.waiting &= ~(1u << slot_);
    combine(warp_.data[slot_]);
    const unsigned others = meeting.mask & ~bit_;
    if (others == 0) return;
    make_ready(t.warp, others);
    if (m.options.seed != 0 && sample() % 4 == 0) {
      make_ready(t.warp, bit_);
      yield();
    }
  }

 private:
  unsigned find_slot(unsigned mask, const Where& where) {
    for (unsigned waiting = warp_.waiting; waiting != 0; waiting &= waiting - 1) {
      const auto slot = static_cast<unsigned>(std::countr_zero(waiting));
      const Meeting& meeting = warp_.meetings[slot];
      if (meeting.mask == mask) {
        if (!same_place(meeting.where, where)) {
          fail("lanes of a warp diverge: " + text_of(where) + ", others in " +
               text_of(meeting.where));
        }
        return slot;
      }
      // Lanes of this mask wait there for this lane, which would wait for them here.
      if ((meeting.arrived & mask) != 0 && (meeting.mask & bit_) != 0) {
        fail(text_of(where) + " and " + text_of(meeting.where) + ": masks that overlap");
      }
    }
    const auto slot = static_cast<unsigned>(std::countr_one(warp_.taken));
    warp_.taken |= 1u << slot;
    warp_.waiting |= 1u << slot;
    warp_.meetings[slot] = {.mask = mask, .arrived = 0, .unread = 0, .where = where};
    return slot;
  }

  Warp& warp_;
  const unsigned bit_;
  unsigned slot_ = 0;
};

void no_result(MeetingData&) {}

}  // namespace

void sync_warp(unsigned mask, Where where) {
  Warp& w = m.warps[current().warp];
  char* const at = &w.sync[w.generation % 2];
  tsan_release(at);
  {
    Arrival arrival(mask, where);
    arrival.wait([&w](MeetingData&) { ++w.generation; });
  }
  tsan_acquire(at);
}

void shuffle(unsigned mask, int source_lane, const void* in, void* out, unsigned bytes,
             Where where) {
  if ((mask >> source_lane & 1u) == 0)
    fail(text_of(where) + ": from a lane that is not in the mask");
  if (bytes > sizeof(MeetingData::bytes[0])) fail(text_of(where) + ": of more than 16 bytes");
  Arrival arrival(mask, where);
  copy_bytes(arrival.data().bytes[lane()], in, bytes);
  arrival.wait(no_result);
  copy_bytes(out, arrival.data().bytes[source_lane], bytes);
}

unsigned ballot(unsigned mask, bool value, Where where) {
  Arrival arrival(mask, where);
  arrival.data().bytes[lane()][0] = value ? 1 : 0;
  arrival.wait(no_result);
  unsigned votes = 0;
  for (unsigned l = 0; l < kWarp; ++l) {
    if ((mask >> l & 1u) != 0 && arrival.data().bytes[l][0] != 0) votes |= 1u << l;
  }
  return votes;
}

void ldmatrix(int n_matrices, const uint64_t (&row)[2], unsigned* out, bool transposed,
              Where where) {
  Arrival arrival(~0u, where);
  const unsigned l = lane();
  copy_bytes(arrival.data().bytes[l], row, 16);
  arrival.wait(no_result);
  const unsigned g = l / 4;
  const unsigned c = 2 * (l % 4);
  for (int i = 0; i < n_matrices; ++i) {
    const auto* const rows = arrival.data().rows + 8 * i;
    const unsigned low = transposed ? rows[c][g] : rows[g][c];
    const unsigned high = transposed ? rows[c + 1][g] : rows[g][c + 1];
    out[i] = low | high << 16;
  }
}

void mma_m16n8k16(MmaInput input, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                  Where where) {
  Arrival arrival(~0u, where);
  MmaTile& tile = arrival.data().mma;
  const unsigned g = lane() / 4;
  const unsigned k = 2 * (lane() % 4);
  for (unsigned i = 0; i < 4; ++i) {
    uint16_t* const to = &tile.a[g + 8 * (i % 2)][k + 8 * (i / 2)];
    to[0] = static_cast<uint16_t>(a[i]);
    to[1] = static_cast<uint16_t>(a[i] >> 16);
    tile.c[g + 8 * (i / 2)][k + i % 2] = c[i];
  }
  for (unsigned i = 0; i < 2; ++i) {
    tile.b[k + 8 * i][g] = static_cast<uint16_t>(b[i]);
    tile.b[k + 8 * i + 1][g] = static_cast<uint16_t>(b[i] >> 16);
  }
  arrival.wait([input](MeetingData& data) {
    ++m.counters.mmas;
    multiply(data.mma, input, m.options.mma);
  });
  for (unsigned i = 0; i < 4; ++i) c[i] = tile.c[g + 8 * (i / 2)][k + i % 2];
}

}  // namespace cuda_on_cpu
