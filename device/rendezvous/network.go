package rendezvous

import (
	"context"
	"net"
	"strconv"
)

// network connects ranks: by TCP, or by a test's substitute.
type network interface {
	dial(ctx context.Context, at string) (net.Conn, error)
	listen(ctx context.Context, at string) (net.Listener, error)
}

type tcp struct{}

func (tcp) dial(ctx context.Context, at string) (net.Conn, error) {
	d := net.Dialer{Timeout: patience}
	return d.DialContext(ctx, "tcp", at)
}

func (tcp) listen(ctx context.Context, at string) (net.Listener, error) {
	var l net.ListenConfig
	return l.Listen(ctx, "tcp", at)
}

// via returns the network of the ranks, and rank 0's address in it.
func (c *Config) via() (n network, at string) {
	at = net.JoinHostPort(c.Addr, strconv.Itoa(c.Port))
	if c.network == nil {
		return tcp{}, at
	}
	return c.network, at
}
