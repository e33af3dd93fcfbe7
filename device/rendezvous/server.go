package rendezvous

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/cistern-ml/cistern/device"
)

// patience is how long a connection may take. Strangers are let go then, and clients come again.
const patience = 5 * time.Second

// most is how many connections there may be at a time besides one for each rank.
const most = 64

// server is rank 0.
type server struct {
	cfg     Config
	attempt [sha256.Size]byte
	id      []byte
	room    chan struct{}
	all     chan struct{} // closed when all have the id

	mu      sync.Mutex
	nonces  map[int][nonceSize]byte // of the ranks that have come
	has     map[int]bool            // those that have the id
	refused string                  // why the last one was
}

// serve hands id to all other ranks.
func serve(ctx context.Context, cfg Config, id []byte) error {
	s := &server{cfg: cfg, attempt: sha256.Sum256([]byte(cfg.Attempt)), id: id, room: make(chan struct{}, cfg.Size+most), all: make(chan struct{}),
		nonces: map[int][nonceSize]byte{}, has: map[int]bool{}}
	var lc net.ListenConfig
	at := net.JoinHostPort(cfg.Addr, strconv.Itoa(cfg.Port))
	l, err := lc.Listen(ctx, "tcp", at)
	if err != nil {
		return fmt.Errorf("rendezvous: rank 0 can't listen on %s: %w; it must be an address of its machine and a free port, which CISTERN_MASTER_PORT can name", at, err)
	}
	within, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() { s.accept(within, l, &group) })
	select {
	case <-s.all:
		err = nil
	case <-ctx.Done():
		err = s.missing(ctx)
	}
	cancel()
	_ = l.Close()
	group.Wait()
	return err
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
		select {
		case s.room <- struct{}{}:
		default:
			_ = conn.Close()
			continue
		}
		group.Go(func() {
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			_ = conn.SetDeadline(time.Now().Add(patience))
			s.talk(conn)
			stop()
			_ = conn.Close()
			<-s.room
		})
	}
}

// talk is one connection. What goes wrong in it is the client's matter, who comes again.
func (s *server) talk(conn net.Conn) {
	h := readHello(conn)
	if h == nil {
		return
	}
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
	} else if why := s.claim(h); why != "" {
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
		s.got(h.rank)
	}
}

// claim says why a client can't be who it says, or makes it that. A process may come again, as long as it does not have the id.
func (s *server) claim(h *hello) string {
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
	s.nonces[h.rank] = h.nonce
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

func (s *server) missing(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var missing []int
	for r := 1; r < s.cfg.Size; r++ {
		if !s.has[r] {
			missing = append(missing, r)
		}
	}
	return fmt.Errorf("rendezvous: rank 0 of %d on %s, port %d: %w: %w: ranks %v did not come%s", s.cfg.Size, s.cfg.Addr, s.cfg.Port, device.ErrTimeout, ctx.Err(), missing, s.refused)
}
