// Functions of the emulated driver: streams and events.
#include "emulated_state.h"

namespace cuda_on_cpu {
namespace {

using namespace pb::cuda;

Result create_stream(StreamHandle* stream, unsigned) {
  CUDA_ON_CPU_ENTER("cuStreamCreate");
  *stream = *state().streams.insert(new StreamObject).first;
  return kSuccess;
}

Result destroy_stream(StreamHandle stream) {
  CUDA_ON_CPU_ENTER_TO_GIVE_BACK("cuStreamDestroy_v2");
  if (!state().streams.contains(stream)) return kErrorInvalidHandle;
  do_all(stream);
  return destroy(state().streams, stream);
}

Result synchronize_stream(StreamHandle stream) {
  CUDA_ON_CPU_ENTER("cuStreamSynchronize");
  if (!state().streams.contains(stream)) return kErrorInvalidHandle;
  if (stream->captured != nullptr) return kErrorCaptureUnsupported;
  do_all(stream);
  return kSuccess;
}

Result query_stream(StreamHandle stream) {
  CUDA_ON_CPU_ENTER("cuStreamQuery");
  if (!state().streams.contains(stream)) return kErrorInvalidHandle;
  if (stream->captured != nullptr) return kErrorCaptureUnsupported;
  if (stream->work.empty()) return kSuccess;
  do_next(stream);
  return kErrorNotReady;
}

Result create_event(EventHandle* event, unsigned) {
  CUDA_ON_CPU_ENTER("cuEventCreate");
  *event = *state().events.insert(new EventObject).first;
  return kSuccess;
}

Result record_event(EventHandle event, StreamHandle stream) {
  CUDA_ON_CPU_ENTER("cuEventRecord");
  if (!state().events.contains(event)) return kErrorInvalidHandle;
  if (const Result code = give(stream, [] {}); code != kSuccess) return code;
  *event = {.stream = stream, .after = stream->n_given};
  return kSuccess;
}

bool is_done(const EventObject& event) {
  return event.stream == nullptr || event.stream->n_done >= event.after;
}

Result query_event(EventHandle event) {
  CUDA_ON_CPU_ENTER("cuEventQuery");
  if (!state().events.contains(event)) return kErrorInvalidHandle;
  if (is_capturing()) return kErrorCaptureUnsupported;
  if (is_done(*event)) return kSuccess;
  do_next(event->stream);
  return kErrorNotReady;
}

Result synchronize_event(EventHandle event) {
  CUDA_ON_CPU_ENTER("cuEventSynchronize");
  if (!state().events.contains(event)) return kErrorInvalidHandle;
  if (is_capturing()) return kErrorCaptureUnsupported;
  while (!is_done(*event)) do_next(event->stream);
  return kSuccess;
}

Result destroy_event(EventHandle event) {
  CUDA_ON_CPU_ENTER_TO_GIVE_BACK("cuEventDestroy_v2");
  return destroy(state().events, event);
}

}  // namespace

void add_stream_functions(DriverApi& table) {
  table.create_stream.call = create_stream;
  table.destroy_stream.call = destroy_stream;
  table.synchronize_stream.call = synchronize_stream;
  table.query_stream.call = query_stream;
  table.create_event.call = create_event;
  table.record_event.call = record_event;
  table.query_event.call = query_event;
  table.synchronize_event.call = synchronize_event;
  table.destroy_event.call = destroy_event;
}

}  // namespace cuda_on_cpu
