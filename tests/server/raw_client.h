// A client of bytes: sends what a test wants, well-formed or not, and reads what comes.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace synod::server {

struct RawReply {
  int status = 0;  // 0 = the connection ended before a reply
  std::string head;
  std::string body;  // chunks joined
  bool is_complete = false;
  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
};

class RawClient {
 public:
  explicit RawClient(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) close();
  }
  ~RawClient() { close(); }
  RawClient(RawClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), pending_(std::move(other.pending_)) {}
  RawClient& operator=(RawClient&&) = delete;

  bool is_open() const { return fd_ >= 0; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void set_receive_buffer(int bytes) { ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)); }

  // False when the server has closed.
  bool send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      text.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  // Up to `bytes`, or "" when nothing came within the time or the server has closed.
  std::string receive(std::chrono::milliseconds limit, size_t bytes = 65536) {
    pollfd wait{fd_, POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(limit.count())) <= 0) return "";
    std::string text(bytes, '\0');
    const ssize_t n = ::recv(fd_, text.data(), text.size(), 0);
    is_closed_ = n <= 0;
    text.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return text;
  }
  bool is_closed() const { return is_closed_; }

  RawReply read_reply(std::chrono::milliseconds limit = std::chrono::seconds(30)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    const auto more = [&] {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      if (left.count() <= 0) return false;
      const std::string text = receive(left);
      pending_ += text;
      return !text.empty();
    };
    RawReply reply;
    size_t at = 0;
    while ((at = pending_.find("\r\n\r\n")) == std::string::npos) {
      if (!more()) return reply;
    }
    reply.head = pending_.substr(0, at + 2);
    pending_.erase(0, at + 4);
    reply.status = std::atoi(reply.head.c_str() + 9);
    if (reply.head.find("Transfer-Encoding: chunked") != std::string::npos) {
      while (true) {
        const size_t line = pending_.find("\r\n");
        if (line == std::string::npos) {
          if (!more()) return reply;
          continue;
        }
        const size_t size = std::strtoul(pending_.c_str(), nullptr, 16);
        while (pending_.size() < line + 2 + size + 2) {
          if (!more()) return reply;
        }
        reply.body += pending_.substr(line + 2, size);
        pending_.erase(0, line + 2 + size + 2);
        if (size == 0) break;
      }
    } else {
      const size_t field = reply.head.find("Content-Length: ");
      const size_t size =
          field == std::string::npos ? 0 : std::strtoul(reply.head.c_str() + field + 16, nullptr, 10);
      while (pending_.size() < size) {
        if (!more()) return reply;
      }
      reply.body = pending_.substr(0, size);
      pending_.erase(0, size);
    }
    reply.is_complete = true;
    return reply;
  }

 private:
  int fd_;
  std::string pending_;
  bool is_closed_ = false;
};

inline std::string post_text(std::string_view path, std::string_view body, std::string_view headers = "") {
  std::string text = "POST ";
  text.append(path)
      .append(" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
      .append(headers);
  text.append("Content-Length: ").append(std::to_string(body.size())).append("\r\n\r\n").append(body);
  return text;
}

inline std::string get_text(std::string_view path, std::string_view headers = "") {
  std::string text = "GET ";
  return text.append(path).append(" HTTP/1.1\r\nHost: localhost\r\n").append(headers).append("\r\n");
}

// One request on a connection of its own.
inline RawReply exchange(uint16_t port, const std::string& request) {
  RawClient client(port);
  client.send(request);
  return client.read_reply();
}

}  // namespace synod::server
