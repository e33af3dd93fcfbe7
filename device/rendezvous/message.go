package rendezvous

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
)

// The client sends a hello, the server answers with magic and a nonce, the client sends its proof,
// and the server sends a reply. Then the client acknowledges the reply with one byte, which the
// server echoes. A client without the echo tries again, because the acknowledgement may be lost.
const (
	magic     = "CISTRDV1"
	nonceSize = 32
	helloSize = len(magic) + 4 + 4 + sha256.Size + nonceSize
	// MaxID is the largest id of Exchange, in bytes.
	MaxID = 4096
)

// hello is a client's claim about itself.
type hello struct {
	rank, size int
	attempt    [sha256.Size]byte
	nonce      [nonceSize]byte // the same for all connections of a process
}

func (h *hello) bytes() []byte {
	b := []byte(magic)
	b = binary.BigEndian.AppendUint32(b, uint32(h.rank))
	b = binary.BigEndian.AppendUint32(b, uint32(h.size))
	b = append(b, h.attempt[:]...)
	return append(b, h.nonce[:]...)
}

// readHello returns nil if the data is not a hello.
func readHello(r io.Reader) *hello {
	b := make([]byte, helloSize)
	if _, err := io.ReadFull(r, b); err != nil || string(b[:len(magic)]) != magic {
		return nil
	}
	b = b[len(magic):]
	h := &hello{rank: int(binary.BigEndian.Uint32(b)), size: int(binary.BigEndian.Uint32(b[4:]))}
	copy(h.attempt[:], b[8:])
	copy(h.nonce[:], b[8+sha256.Size:])
	return h
}

// prove returns the proof of side, "client" or "server", that it has the token, for one connection
// and message.
func prove(token, side string, h *hello, nonce, said []byte) []byte {
	m := hmac.New(sha256.New, []byte(token))
	m.Write([]byte(side))
	m.Write(h.bytes())
	m.Write(nonce)
	m.Write(said)
	return m.Sum(nil)
}

// reply is the server's last message: the id, or the reason of a refusal.
type reply struct {
	refused bool
	text    []byte
}

func (r *reply) bytes() []byte {
	b := []byte{0}
	if r.refused {
		b[0] = 1
	}
	return append(binary.BigEndian.AppendUint32(b, uint32(len(r.text))), r.text...)
}

func readReply(from io.Reader) (*reply, error) {
	var head [5]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > MaxID {
		return nil, fmt.Errorf("a reply of %d bytes, more than %d", n, MaxID)
	}
	r := &reply{refused: head[0] != 0, text: make([]byte, n)}
	_, err := io.ReadFull(from, r.text)
	return r, err
}
