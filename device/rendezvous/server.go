package rendezvous

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/cistern-ml/cistern/device"
)

const (
	// introduction is the time in which a client must prove that it has the token.
	introduction = 2 * time.Second
	// patience limits the rest of the exchange, and on the client's side all of it. Clients try
	// again.
	patience = 5 * time.Second
	// spare is the number of clients without a proof that rank 0 serves at a time, in addition to
	// one for each rank.
	spare = 64
)

// server is rank 0.
type server struct {
	cfg     Config
	attempt [sha256.Size]byte
	id      []byte
	all     chan struct{} // closed when all ranks have the id

	mu      sync.Mutex
	silent  []net.Conn              // of clients without a hello, oldest first
	greeted []net.Conn              // of clients with a hello and without a proof, oldest first
	proven  map[int]net.Conn        // by rank, of clients with a proof
	nonces  map[int][nonceSize]byte // by rank, of ranks that have connected
	has     map[int]bool            // ranks that have the id
	refused string                  // reason of the last refusal, for the error
}

func newServer(cfg Config, id []byte) *server {
	return &server{cfg: cfg, attempt: sha256.Sum256([]byte(cfg.Attempt)), id: id, all: make(chan struct{}),
		proven: map[int]net.Conn{}, nonces: map[int][nonceSize]byte{}, has: map[int]bool{}}
}

// serve sends id to all other ranks.
func serve(ctx context.Context, cfg Config, id []byte) error {
	s := newServer(cfg, id)
	n, at := cfg.via()
	l, err := n.listen(ctx, at)
	if err != nil {
		return fmt.Errorf("rendezvous: rank 0 can't listen on %s: %w; it must be an address of its machine and a free port, which CISTERN_MASTER_PORT can name", at, err)
	}
	within, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() { s.accept(within, l, &group) })
	select {
	case <-s.all:
	case <-ctx.Done():
	}
	cancel()
	_ = l.Close()
	group.Wait()
	return s.missing(ctx)
}

func (s *server) accept(ctx context.Context, l net.Listener, group *sync.WaitGroup) {
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			// For example after too many open files, which may pass.
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(introduction))
		s.admit(&s.silent, conn)
		group.Go(func() {
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			s.talk(conn)
			stop()
			_ = conn.Close()
			s.mu.Lock()
			s.drop(conn)
			s.mu.Unlock()
		})
	}
}

// admit adds the connection to the given list and removes it from all others. If the list is full
// it closes the oldest connection. A rank sends its next message at once, so it needs less time
// than strangers that wait.
func (s *server) admit(kind *[]net.Conn, conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(conn)
	if len(*kind) == s.cfg.Size+spare {
		_ = (*kind)[0].Close()
		*kind = (*kind)[1:]
	}
	*kind = append(*kind, conn)
}

// drop forgets a connection. The caller holds the lock.
func (s *server) drop(conn net.Conn) {
	is := func(c net.Conn) bool { return c == conn }
	s.silent, s.greeted = slices.DeleteFunc(s.silent, is), slices.DeleteFunc(s.greeted, is)
	maps.DeleteFunc(s.proven, func(_ int, c net.Conn) bool { return is(c) })
}

// talk serves one connection. It ignores errors, because the client tries again.
func (s *server) talk(conn net.Conn) {
	h := readHello(conn)
	if h == nil {
		return
	}
	s.admit(&s.greeted, conn)
	nonce := make([]byte, nonceSize)
	_, _ = rand.Read(nonce)
	if _, err := conn.Write(append([]byte(magic), nonce...)); err != nil {
		return
	}
	proof := make([]byte, sha256.Size)
	if _, err := io.ReadFull(conn, proof); err != nil {
		return
	}
	r := &reply{text: s.id}
	if !hmac.Equal(proof, prove(s.cfg.Token, "client", h, nonce, nil)) {
		r = &reply{refused: true, text: []byte("the token differs from rank 0's")}
	} else if why := s.claim(h, conn); why != "" {
		r = &reply{refused: true, text: []byte(why)}
	}
	if r.refused {
		s.mu.Lock()
		s.refused = fmt.Sprintf("; a client that claims rank %d, from %v, was refused: %s", h.rank, conn.RemoteAddr(), r.text)
		s.mu.Unlock()
	}
	said := r.bytes()
	if _, err := conn.Write(append(said, prove(s.cfg.Token, "server", h, nonce, said)...)); err != nil || r.refused {
		return
	}
	if _, err := io.ReadFull(conn, nonce[:1]); err == nil {
		_, _ = conn.Write(nonce[:1]) // before got, after which rank 0 may end
		s.got(h.rank)
	}
}

// claim makes the connection's client the rank that it claims, or returns the reason of a refusal.
// A process may connect again while it does not have the id. Then its earlier connection is closed,
// so that no rank holds more than one.
func (s *server) claim(h *hello, conn net.Conn) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch before, twice := s.nonces[h.rank]; {
	case h.attempt != s.attempt:
		return "it belongs to another start of the job"
	case h.size != s.cfg.Size:
		return fmt.Sprintf("its size is %d, rank 0's is %d", h.size, s.cfg.Size)
	case h.rank < 1 || h.rank >= s.cfg.Size:
		return fmt.Sprintf("rank %d of %d, and rank 0 is another process; the others are 1 to %d", h.rank, s.cfg.Size, s.cfg.Size-1)
	case twice && before != h.nonce:
		return fmt.Sprintf("rank %d of %d has connected already, from another process", h.rank, s.cfg.Size)
	}
	if before := s.proven[h.rank]; before != nil {
		_ = before.Close()
	}
	s.drop(conn)
	s.nonces[h.rank], s.proven[h.rank] = h.nonce, conn
	_ = conn.SetDeadline(time.Now().Add(patience))
	return ""
}

func (s *server) got(rank int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.has[rank] {
		return
	}
	s.has[rank] = true
	if len(s.has) == s.cfg.Size-1 {
		close(s.all)
	}
}

// missing returns an error that names the ranks without the id. If all have it, it returns nil even
// if ctx has ended.
func (s *server) missing(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var missing []int
	for r := 1; r < s.cfg.Size; r++ {
		if !s.has[r] {
			missing = append(missing, r)
		}
	}
	if missing == nil {
		return nil
	}
	return fmt.Errorf("rendezvous: rank 0 of %d on %s, port %d: %w: %w: ranks %v did not connect%s", s.cfg.Size, s.cfg.Addr, s.cfg.Port, device.ErrTimeout, ctx.Err(), missing, s.refused)
}
