package rendezvous

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/cistern-ml/cistern/device"
)

// pause is the time between a client's attempts.
const pause = 50 * time.Millisecond

// errRefused marks a refusal by rank 0, or an answer without a valid proof. Another attempt can't
// succeed.
var errRefused = errors.New("refused")

// fetch gets the id from rank 0, which may not have started yet. Once it has the id it tries again
// until rank 0 confirms, or can't be reached any more.
func fetch(ctx context.Context, cfg Config) ([]byte, error) {
	h := &hello{rank: cfg.Rank, size: cfg.Size, attempt: sha256.Sum256([]byte(cfg.Attempt))}
	_, _ = rand.Read(h.nonce[:])
	n, at := cfg.via()
	var id []byte
	for {
		conn, err := n.dial(ctx, at)
		if err != nil && id != nil {
			return id, nil
		}
		if err == nil {
			var got []byte
			if got, err = converse(ctx, conn, cfg, h); err == nil {
				return got, nil
			}
			if got != nil {
				id = got
			}
		}
		if errors.Is(err, errRefused) {
			return nil, fmt.Errorf("rendezvous: rank %d of %d: %w", cfg.Rank, cfg.Size, err)
		}
		select {
		case <-ctx.Done():
			if id != nil {
				return id, nil
			}
			return nil, fmt.Errorf("rendezvous: rank %d of %d: %w: %w: rank 0 did not answer on %s, port %d: %v", cfg.Rank, cfg.Size, device.ErrTimeout, ctx.Err(), cfg.Addr, cfg.Port, err)
		case <-time.After(pause):
		}
	}
}

// converse runs the client's side of a connection and closes it. An id together with an error means
// that the client has the id, but rank 0 has not confirmed.
func converse(ctx context.Context, conn net.Conn, cfg Config, h *hello) ([]byte, error) {
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(h.bytes()); err != nil {
		return nil, err
	}
	answer := make([]byte, len(magic)+nonceSize)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return nil, err
	}
	if string(answer[:len(magic)]) != magic {
		return nil, errors.New("another program listens there")
	}
	nonce := answer[len(magic):]
	if _, err := conn.Write(prove(cfg.Token, "client", h, nonce, nil)); err != nil {
		return nil, err
	}
	r, err := readReply(conn)
	if err != nil {
		return nil, err
	}
	proof := make([]byte, sha256.Size)
	if _, err := io.ReadFull(conn, proof); err != nil {
		return nil, err
	}
	if !hmac.Equal(proof, prove(cfg.Token, "server", h, nonce, r.bytes())) {
		return nil, fmt.Errorf("%w: the process that listens on %s, port %d has a different token; CISTERN_RENDEZVOUS_TOKEN must be the same on all ranks", errRefused, cfg.Addr, cfg.Port)
	}
	if r.refused {
		return nil, fmt.Errorf("%w: %w: %s", errRefused, device.ErrMismatch, r.text)
	}
	if _, err := conn.Write([]byte{1}); err != nil {
		return r.text, err
	}
	_, err = io.ReadFull(conn, proof[:1])
	return r.text, err
}
