package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
)

// lan is a network in memory, whose calls may fail. As with TCP, a write does not wait for the
// reader, and data that was written before a Close can be read.
type lan struct {
	faults *failtest.Faults

	mu    sync.Mutex
	ports map[string]*port // the listening ports
	open  int              // number of open ends of connections
}

// port is a listener of a lan.
type port struct {
	lan   *lan
	at    string
	conns chan net.Conn // connections that are not accepted yet
}

func newLAN(f *failtest.Faults) *lan { return &lan{faults: f, ports: map[string]*port{}} }

func (l *lan) listen(_ context.Context, at string) (net.Listener, error) {
	if err := l.faults.Call("Listen"); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ports[at] != nil {
		return nil, syscall.EADDRINUSE
	}
	l.ports[at] = &port{l, at, make(chan net.Conn, 16)}
	return l.ports[at], nil
}

func (l *lan) dial(ctx context.Context, at string) (net.Conn, error) {
	if err := errors.Join(l.faults.Call("Dial"), ctx.Err()); err != nil {
		return nil, err
	}
	return l.connect(at)
}

// connect is a dial that the test does not make fail.
func (l *lan) connect(at string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.ports[at]
	if p == nil {
		return nil, syscall.ECONNREFUSED
	}
	there, back := make(chan []byte, 16), make(chan []byte, 16)
	l.open += 2
	p.conns <- newEnd(l, there, back)
	return newEnd(l, back, there), nil
}

func (p *port) Accept() (net.Conn, error) {
	if err := p.lan.faults.Call("Accept"); err != nil {
		return nil, err
	}
	if c := <-p.conns; c != nil {
		return c, nil
	}
	return nil, net.ErrClosed
}

// Close also closes the connections that were not accepted.
func (p *port) Close() error {
	p.lan.mu.Lock()
	delete(p.lan.ports, p.at)
	p.lan.mu.Unlock()
	close(p.conns)
	for c := range p.conns {
		_ = c.Close()
	}
	return nil
}

func (p *port) Addr() net.Addr { return nil }

// end is one end of a connection.
type end struct {
	net.Conn // nil; for the methods that are not overridden
	lan      *lan
	in       <-chan []byte
	rest     []byte // of the last read
	gone     chan struct{}

	mu    sync.Mutex
	out   chan<- []byte // nil after Close
	limit context.Context
	stop  func() // stops the timer of the limit
}

func newEnd(l *lan, in, out chan []byte) *end {
	return &end{lan: l, in: in, out: out, gone: make(chan struct{}), limit: context.Background(), stop: func() {}}
}

func (e *end) RemoteAddr() net.Addr { return &net.TCPAddr{} }

func (e *end) SetDeadline(at time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stop()
	e.limit, e.stop = context.WithDeadline(context.Background(), at)
	return nil
}

func (e *end) deadline() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.limit
}

func (e *end) Read(p []byte) (int, error) {
	if err := e.lan.faults.Call("Read"); err != nil {
		return 0, err
	}
	limit := e.deadline()
	if limit.Err() != nil {
		return 0, os.ErrDeadlineExceeded
	}
	if len(e.rest) == 0 {
		var ok bool
		select {
		case <-e.gone:
			return 0, net.ErrClosed
		case <-limit.Done():
			return 0, os.ErrDeadlineExceeded
		case e.rest, ok = <-e.in:
			if !ok {
				return 0, io.EOF
			}
		}
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

func (e *end) Write(p []byte) (int, error) {
	return failtest.Writer(e.lan.faults, (*outgoing)(e)).Write(p)
}

// outgoing is an end whose writes the test does not make fail.
type outgoing end

func (e *outgoing) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.out == nil:
		return 0, net.ErrClosed
	case e.limit.Err() != nil:
		return 0, os.ErrDeadlineExceeded
	}
	e.out <- bytes.Clone(p)
	return len(p), nil
}

func (e *end) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.out == nil {
		return net.ErrClosed
	}
	e.stop()
	close(e.gone)
	close(e.out)
	e.out = nil
	e.lan.mu.Lock()
	defer e.lan.mu.Unlock()
	e.lan.open--
	return nil
}
