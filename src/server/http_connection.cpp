#include "server/http_connection.h"

#include <algorithm>
#include <random>

#include "base/log.h"

namespace synod::server {
namespace {

constexpr std::chrono::milliseconds kLingerTime{2'000};
constexpr int64_t kLingerBytes = int64_t{64} << 20;

std::string_view reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

bool is_one_line(std::string_view text) { return text.find_first_of("\r\n") == std::string_view::npos; }

}  // namespace

std::string request_id(std::string_view offered) {
  const bool is_plain = std::all_of(offered.begin(), offered.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
  if (!offered.empty() && offered.size() <= 128 && is_plain) return std::string(offered);
  static std::mt19937_64 random(std::random_device{}());  // used on the I/O thread alone
  return fmt::format("req_{:016x}", random());
}

ConnectionBase::ConnectionBase(Hub& hub, Tcp::endpoint remote)
    : hub_(hub), remote_(std::move(remote)), deadline_(hub.io), keepalive_timer_(hub.io) {}

ConnectionBase::~ConnectionBase() = default;

void ConnectionBase::set_deadline(std::chrono::milliseconds limit) {
  deadline_.expires_after(limit);
  deadline_.async_wait([weak = weak_from_this()](const ErrorCode& error) {
    const auto self = weak.lock();
    // A wait that had already ended when the deadline moved arrives without an error: look at the clock.
    if (error || !self || self->deadline_.expiry() > Clock::now()) return;
    self->close();
  });
}

void ConnectionBase::clear_deadline() { deadline_.expires_at(Clock::time_point::max()); }

void ConnectionBase::next_request() {
  state_ = State::kIdle;
  if (hub_.is_draining || is_half_open_) return close();
  if (has_buffered()) {
    state_ = State::kReading;
    return read_header();
  }
  set_deadline(hub_.options.idle_timeout);
  if (is_reading_) return;  // the read that watched for the client's leaving goes on
  is_reading_ = true;
  socket_read_more();
}

void ConnectionBase::received(const ErrorCode& error, size_t bytes) {
  is_reading_ = false;
  switch (state_) {
    case State::kClosed:
    case State::kReading:
      return;
    case State::kIdle:
      if (error) return close();
      state_ = State::kReading;
      return read_header();
    case State::kBusy:
      // A client may close its side and still wait for a short reply; nobody waits for a long one like that.
      if (error == asio::error::eof) {
        is_half_open_ = true;
        client_left();
      } else if (error) {
        close();
      }
      return;  // bytes of a next request stay in the buffer, and end the watch
    case State::kLinger:
      lingered_bytes_ += static_cast<int64_t>(bytes);
      if (error || lingered_bytes_ > kLingerBytes) return close();
      discard_buffer();
      is_reading_ = true;
      socket_read_more();
      return;
  }
}

void ConnectionBase::take_request(HttpRequest request, unsigned version, bool keep_alive,
                                  int64_t body_bytes) {
  state_ = State::kBusy;
  ++sequence_;
  version_ = version;
  keep_alive_ = keep_alive;
  is_head_request_ = request.method == "HEAD";
  body_bytes_ = body_bytes;
  started_ = Clock::now();
  entry_ = {};
  entry_.id = request.id;
  entry_.remote = request.remote;
  entry_.method = request.method;
  entry_.path = request.path;
  entry_.bytes_in = body_bytes;
  ++hub_.n_busy;
  clear_deadline();
  if (!has_buffered() && !is_reading_) {
    is_reading_ = true;
    socket_read_more();
  }
  hub_.dispatch(std::move(request), std::make_shared<ReplyHandle>(shared_from_this(), sequence_));
}

void ConnectionBase::refuse(HttpHead head, std::string body, HttpRequest request) {
  state_ = State::kBusy;
  ++sequence_;
  keep_alive_ = false;
  is_head_request_ = request.method == "HEAD";
  started_ = Clock::now();
  entry_ = {};
  entry_.id = request.id;
  entry_.remote = fmt::format("{}:{}", remote_.address().to_string(), remote_.port());
  entry_.method = request.method;
  entry_.path = request.path;
  ++hub_.n_busy;
  reply_send(sequence_, std::move(head), std::move(body));
}

void ConnectionBase::refuse(int status, std::string_view message) {
  HttpHead head;
  head.status = status;
  if (status == 503) head.headers.emplace_back("Retry-After", "1");
  refuse(std::move(head), hub_.handlers.error_body(status, message), {});
}

std::string ConnectionBase::head_text(const HttpHead& head, std::optional<size_t> length) {
  entry_.status = head.status;
  std::string text =
      fmt::format("HTTP/1.{} {} {}\r\n", version_ == 10 ? 0 : 1, head.status, reason(head.status));
  const auto add = [&](std::string_view name, std::string_view value) {
    if (is_one_line(name) && is_one_line(value)) text.append(name).append(": ").append(value).append("\r\n");
  };
  if (!head.content_type.empty()) add("Content-Type", head.content_type);
  if (length) {
    if (head.status != 204) add("Content-Length", std::to_string(*length));
  } else if (is_chunked_) {
    add("Transfer-Encoding", "chunked");
  }
  if (!entry_.id.empty()) add("x-request-id", entry_.id);
  if (!keep_alive_ || hub_.is_draining) {
    add("Connection", "close");
  } else if (version_ == 10) {
    add("Connection", "keep-alive");
  }
  for (const auto& [name, value] : head.headers) add(name, value);
  return text + "\r\n";
}

void ConnectionBase::reply_send(uint64_t sequence, HttpHead head, std::string body) {
  if (sequence != sequence_ || state_ != State::kBusy || is_streaming_ || is_ending_) return;
  std::string text = head_text(head, body.size());
  is_ending_ = true;
  if (is_head_request_ || body.empty()) return queue(std::move(text));
  unsent_bytes_ += static_cast<int64_t>(text.size());
  unsent_.push_back(std::move(text));  // leaves in one packet with a short body
  queue(std::move(body));
}

void ConnectionBase::reply_start(uint64_t sequence, HttpHead head, std::string keepalive,
                                 std::chrono::milliseconds every) {
  if (sequence != sequence_ || state_ != State::kBusy || is_streaming_ || is_ending_) return;
  is_streaming_ = true;
  is_chunked_ = version_ >= 11;
  if (!is_chunked_) keep_alive_ = false;  // the end of the connection is the end of the reply
  keepalive_ = std::move(keepalive);
  keepalive_every_ = every;
  last_write_ = Clock::now();
  if (!keepalive_.empty() && every.count() > 0) arm_keepalive();
  queue(head_text(head, std::nullopt));
}

void ConnectionBase::reply_write(uint64_t sequence, std::string text) {
  if (sequence != sequence_ || state_ != State::kBusy || !is_streaming_ || is_ending_ || is_head_request_)
    return;
  if (unsent_bytes_ + static_cast<int64_t>(text.size()) > hub_.options.max_unsent_bytes) {
    log_warning("{}: the client reads too slowly: {} bytes unsent, disconnected", entry_.id, unsent_bytes_);
    return close();
  }
  queue(is_chunked_ ? fmt::format("{:x}\r\n{}\r\n", text.size(), text) : std::move(text));
}

void ConnectionBase::reply_finish(uint64_t sequence) {
  if (sequence != sequence_ || state_ != State::kBusy || is_ending_) return;
  if (!is_streaming_) return close();
  is_ending_ = true;
  queue(is_chunked_ && !is_head_request_ ? "0\r\n\r\n" : "");
}

void ConnectionBase::reply_abort(uint64_t sequence) {
  if (sequence == sequence_ && state_ == State::kBusy && !is_ending_) close();
}

void ConnectionBase::reply_on_close(uint64_t sequence, std::function<void()> callback) {
  if (sequence == sequence_ && state_ == State::kBusy && !is_half_open_) {
    on_close_ = std::move(callback);
  } else {
    callback();
  }
}

void ConnectionBase::queue(std::string text) {
  unsent_bytes_ += static_cast<int64_t>(text.size());
  if (!text.empty()) unsent_.push_back(std::move(text));
  flush();
}

void ConnectionBase::flush() {
  if (is_writing_ || state_ != State::kBusy) return;
  if (unsent_.empty()) {
    if (is_ending_) reply_complete();
    return;
  }
  std::string text = std::move(unsent_.front());
  unsent_.pop_front();
  constexpr size_t kJoinBytes = size_t{64} << 10;  // small pieces leave in one packet
  while (!unsent_.empty() && text.size() + unsent_.front().size() <= kJoinBytes) {
    text += unsent_.front();
    unsent_.pop_front();
  }
  is_writing_ = true;
  writing_bytes_ = static_cast<int64_t>(text.size());
  set_deadline(hub_.options.write_timeout);
  socket_write(std::move(text));
}

void ConnectionBase::written(const ErrorCode& error) {
  is_writing_ = false;
  if (state_ != State::kBusy) return;
  if (error) return close();
  entry_.bytes_out += writing_bytes_;
  unsent_bytes_ = std::max<int64_t>(0, unsent_bytes_ - writing_bytes_);
  last_write_ = Clock::now();
  clear_deadline();
  flush();
}

void ConnectionBase::arm_keepalive() {
  keepalive_timer_.expires_at(last_write_ + keepalive_every_);
  keepalive_timer_.async_wait([weak = weak_from_this(), sequence = sequence_](const ErrorCode& error) {
    const auto self = weak.lock();
    if (error || !self || self->sequence_ != sequence || self->state_ != State::kBusy || self->is_ending_)
      return;
    if (Clock::now() - self->last_write_ >= self->keepalive_every_) {
      if (!self->is_writing_) self->reply_write(sequence, self->keepalive_);
      self->last_write_ = Clock::now();
    }
    if (self->state_ == State::kBusy) self->arm_keepalive();
  });
}

void ConnectionBase::finish_log(bool is_complete) {
  entry_.is_complete = is_complete;
  entry_.milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - started_).count();
  if (hub_.handlers.log) hub_.handlers.log(entry_);
}

void ConnectionBase::client_left() {
  if (const auto callback = std::exchange(on_close_, {})) callback();
}

void ConnectionBase::reply_complete() {
  on_close_ = {};
  keepalive_timer_.cancel();
  finish_log(true);
  --hub_.n_busy;
  hub_.bodies_bytes -= std::exchange(body_bytes_, 0);
  is_streaming_ = is_chunked_ = is_ending_ = false;
  unsent_bytes_ = 0;
  if (keep_alive_ && !is_half_open_ && !hub_.is_draining) return next_request();
  if (is_half_open_) return close();
  linger();
}

// Closing a socket with unread input resets the connection, and the reset may overtake the reply.
void ConnectionBase::linger() {
  state_ = State::kLinger;
  set_deadline(kLingerTime);
  socket_shutdown_send();
  discard_buffer();
  if (is_reading_) return;
  is_reading_ = true;
  socket_read_more();
}

void ConnectionBase::close_if_idle() {
  if (state_ == State::kIdle || state_ == State::kReading) close();
}

void ConnectionBase::close() {
  if (state_ == State::kClosed) return;
  const auto self = shared_from_this();  // forget() may drop the last other reference
  const bool was_busy = state_ == State::kBusy;
  state_ = State::kClosed;
  socket_close();
  deadline_.cancel();
  keepalive_timer_.cancel();
  unsent_.clear();
  client_left();
  if (was_busy) {
    finish_log(false);
    --hub_.n_busy;
    hub_.bodies_bytes -= std::exchange(body_bytes_, 0);
  }
  hub_.forget(this);
}

}  // namespace synod::server
