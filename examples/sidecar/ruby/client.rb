# A client of `pybatcher serve` in Ruby: MessagePack-RPC over a unix socket.
#
#     apt-get install ruby ruby-msgpack        (or: gem install msgpack)
#     ruby client.rb [SOCKET] [PROMPT]
#
# The gem msgpack writes and reads the messages; socket and threads are Ruby's own.

require "msgpack"
require "socket"

class SidecarError < StandardError
  attr_reader :code, :retryable # code: "invalid_request", "queue_full", "cancelled", ...

  def initialize(error)
    @code, @retryable, message = error.values_at("code", "retryable", "message")
    super("#{@code}: #{message}")
  end
end

# For any number of threads; what they ask at the same time is served together.
class Sidecar
  REQUEST, RESPONSE, NOTIFICATION = 0, 1, 2

  def initialize(path)
    @socket = UNIXSocket.new(path)
    @lock = Mutex.new
    @last_id = 0
    @calls = {} # by message id: the queue of what came for it
    Thread.new { read }.report_on_exception = false # whoever waits is told
  end

  # The result. With a block it is a stream: the block gets each delta, and the request's id.
  def generate(prompt, **options, &block)
    call("generate", prompt, options.merge(stream: !block.nil?), &block)
  end

  def call(method, *params)
    arrived = Queue.new
    id = @lock.synchronize do
      @calls[@last_id += 1] = arrived
      send_message([REQUEST, @last_id, method, params])
      @last_id
    end
    while (kind, content = arrived.pop)[0] == :delta
      yield content, id
    end
    kind == :result ? content : raise(content)
  ensure
    @lock.synchronize { @calls.delete(id) }
  end

  def cancel(id) = @lock.synchronize { send_message([NOTIFICATION, "cancel", [id]]) }
  def close = @socket.shutdown

  private

  def send_message(message) = @socket.write(message.to_msgpack)

  def read
    MessagePack::Unpacker.new(@socket).each do |type, *rest|
      if type == RESPONSE
        id, error, result = rest
        error ? tell(id, :error, SidecarError.new(error)) : tell(id, :result, result)
      elsif type == NOTIFICATION && rest[0] == "delta"
        tell(rest[1][0], :delta, rest[1][1])
      end
    end
  ensure
    @lock.synchronize { @calls.keys }.each { |id| tell(id, :error, IOError.new("hung up")) }
  end

  def tell(id, *what) = @lock.synchronize { @calls[id]&.push(what) }
end

path = ARGV[0] || ENV["PYBATCHER_SOCKET"] || "#{ENV["XDG_RUNTIME_DIR"]}/pybatcher.sock"
begin
  sidecar = Sidecar.new(path)
rescue SystemCallError => error
  abort "no sidecar at #{path} (#{error.class}); start `pybatcher serve`, or name its socket"
end
prompt = ARGV[1] || "Once upon a time"

puts "== a stream"
streamed = sidecar.generate(prompt, max_tokens: 24) { |delta| $stdout << delta["text"] }
puts "\n#{streamed["finish_reason"]}, #{streamed["usage"]["completion_tokens"]} tokens"

puts "== two at once"
drawn = { temperature: 0.8, seed: 7 }
both = [{}, drawn].map { |o| Thread.new { sidecar.generate(prompt, max_tokens: 24, **o) } }
both.each { |thread| puts thread.value["text"] }

puts "== a stream that is cancelled"
begin
  deltas = 0
  sidecar.generate(prompt, max_tokens: 1000, ignore_eos: true) do |_, id|
    sidecar.cancel(id) if (deltas += 1) == 5
  end
rescue SidecarError => error
  puts error.message
end

completed = sidecar.call("statistics")["completed"]
puts "== #{sidecar.call("hello", {})["model"]} has completed #{completed}"
sidecar.close
