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
	// patience is the time for the rest of the exchange, and for all of it on the client's side. Clients try again.
	patience = 5 * time.Second
	// spare is how many clients without a proof rank 0 serves at a time besides one for each rank.
	spare = 64
)

// server is rank 0.
type server struct {
	cfg     Config
	attempt [sha256.Size]byte
	id      []byte
	all     chan struct{} // closed when all have the id

	mu      sync.Mutex
	silent  []net.Conn              // of clients that have not said hello, the oldest first
	greeted []net.Conn              // of those that have, and have not proved that they have the token
	proven  map[int]net.Conn        // of the ranks that have
	nonces  map[int][nonceSize]byte // of the ranks that have come
	has     map[int]bool            // those that have the id
	refused string                  // why the last one was
}

func newServer(cfg Config, id []byte) *server {
	return &server{cfg: cfg, attempt: sha256.Sum256([]byte(cfg.Attempt)), id: id, all: make(chan struct{}),
		proven: map[int]net.Conn{}, nonces: map[int][nonceSize]byte{}, has: map[int]bool{}}
}

// serve hands id to all other ranks.
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
			select { // of too many files, say: it may pass
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

// admit keeps the connection of a client among those of its kind, and no other. If there are too many
// of the kind, the oldest one is closed: a rank has its next message ready, so that it needs less time
// than strangers who wait.
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

// drop forgets a connection. It needs the lock.
func (s *server) drop(conn net.Conn) {
	is := func(c net.Conn) bool { return c == conn }
	s.silent, s.greeted = slices.DeleteFunc(s.silent, is), slices.DeleteFunc(s.greeted, is)
	maps.DeleteFunc(s.proven, func(_ int, c net.Conn) bool { return is(c) })
}

// talk is one connection. What goes wrong in it is the client's matter, who comes again.
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
		r = &reply{refused: true, text: []byte("the token is another one than rank 0's")}
	} else if why := s.claim(h, conn); why != "" {
		r = &reply{refused: true, text: []byte(why)}
	}
	if r.refused {
		s.mu.Lock()
		s.refused = fmt.Sprintf("; one that says it is rank %d, from %v, was refused: %s", h.rank, conn.RemoteAddr(), r.text)
		s.mu.Unlock()
	}
	said := r.bytes()
	if _, err := conn.Write(append(said, prove(s.cfg.Token, "server", h, nonce, said)...)); err != nil || r.refused {
		return
	}
	if _, err := io.ReadFull(conn, nonce[:1]); err == nil {
		_, _ = conn.Write(nonce[:1]) // before got, with which rank 0 may end
		s.got(h.rank)
	}
}

// claim returns why the client of a connection can't be the rank that it claims, or makes it that. A
// process may come again, as long as it does not have the id: then its earlier connection is closed, so
// that no rank holds more than one.
func (s *server) claim(h *hello, conn net.Conn) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch before, twice := s.nonces[h.rank]; {
	case h.attempt != s.attempt:
		return "it is of another start of the job"
	case h.size != s.cfg.Size:
		return fmt.Sprintf("it says that there are %d ranks, rank 0 that there are %d", h.size, s.cfg.Size)
	case h.rank < 1 || h.rank >= s.cfg.Size:
		return fmt.Sprintf("rank %d of %d, and rank 0 is another process; the others are 1 to %d", h.rank, s.cfg.Size, s.cfg.Size-1)
	case twice && before != h.nonce:
		return fmt.Sprintf("rank %d of %d has come already, in another process", h.rank, s.cfg.Size)
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

// missing is nil if all have the id, though ctx may have ended at the same time.
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
	return fmt.Errorf("rendezvous: rank 0 of %d on %s, port %d: %w: %w: ranks %v did not come%s", s.cfg.Size, s.cfg.Addr, s.cfg.Port, device.ErrTimeout, ctx.Err(), missing, s.refused)
}
