package hostop

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Backend runs operations on a stream of a device whose memory the host can touch.
type Backend struct {
	env    backend.Env
	mem    device.HostVisible
	stream device.Stream
	spare  spare
}

// New makes the backend of the environment's stream, whose device is mem. A level of vector
// instructions that was chosen wrongly is an error.
func New(env backend.Env, mem device.HostVisible) (*Backend, error) {
	if err := simd.Chosen(); err != nil {
		return nil, err
	}
	return &Backend{env: env, mem: mem, stream: env.Stream()}, nil
}

// Prepare is backend.Backend's: calls share no memory.
func (b *Backend) Prepare(context.Context) error { return nil }

// Close is backend.Backend's.
func (b *Backend) Close() error { return nil }

// Supports is backend.Backend's.
func (b *Backend) Supports(c *backend.Call) bool {
	return table.find(c) != nil && (table.pairs[c.Op] != nil || !c.Mixed())
}

// Do is backend.Backend's. An item of a list is a launch.
func (b *Backend) Do(ctx context.Context, c *backend.Call) error {
	defer c.Free()
	if err := b.each(ctx, c); err != nil {
		return c.Failed(err)
	}
	return nil
}

func (b *Backend) each(ctx context.Context, c *backend.Call) error {
	f := table.find(c)
	switch {
	case f == nil:
		return c.Unsupported()
	case c.List.Stride == 0:
		return b.do(ctx, f, c)
	}
	all, n := c.List, c.N
	for i := range all.Len() {
		c.N, c.List = n, all.Slice(i, i+1)
		for _, r := range all.Item(i) {
			c.Add(r)
		}
		if err := b.do(ctx, f, c); err != nil {
			return err
		}
	}
	return nil
}

// do queues one launch, with scratch memory as its last operand if it takes some.
func (b *Backend) do(ctx context.Context, f function, c *backend.Call) error {
	if c.Empty() {
		return nil
	}
	if room := scratch[c.Op][c.Dtype]; room != nil {
		if n := room(c); n > 0 {
			block, err := b.env.Scratch(ctx, int64(n)*int64(c.Dtype.Size()))
			if err != nil {
				return err
			}
			defer b.env.FreeScratch(ctx, block)
			c.Add(backend.Ref{Ptr: block.Ptr(), Bytes: int64(n) * int64(c.Dtype.Size()), Dtype: c.Dtype})
		}
	}
	return b.launch(f, c)
}

// launch is a launch as the stream gets it, which is done with it when Launch returns. A call has
// one.
type launch struct {
	device.Launch
	reads, writes [backend.MaxArgs + 1]device.Range
}

// briefBytes is how much memory a launch has at most that is brief.
const briefBytes = 4 << 10

func (b *Backend) launch(f function, c *backend.Call) error {
	l, _ := c.Scratch.(*launch)
	if l == nil {
		l = new(launch)
		c.Scratch = l
	}
	a := b.spare.take()
	if err := b.operands(l, a, c); err != nil {
		b.spare.giveBack(a)
		return err
	}
	a.set(f, c)
	l.Name, l.Func, l.Captured = c.Op.Name(), a.run, &a.captured
	err := b.stream.Launch(&l.Launch)
	l.Func, l.Captured = nil, nil
	if err != nil {
		b.spare.giveBack(a)
	}
	return err
}

// operands gives the kernel its operands, and names the memory that it reads and writes to the
// stream.
func (b *Backend) operands(l *launch, a *args, c *backend.Call) error {
	bytes := int64(0)
	l.Reads, l.Writes, a.n = l.reads[:0], l.writes[:0], c.N
	for i := range c.Args[:c.N] {
		r := &c.Args[i]
		if r.Bytes == 0 {
			continue
		}
		if r.Host == nil {
			host, err := b.mem.Bytes(r.Ptr, r.Bytes)
			if err != nil {
				return err
			}
			r.Host = &host[0]
		}
		*a.at(i) = memory{r.Host, r.Bytes}
		role := c.Role(i)
		if role&backend.Read != 0 {
			l.Reads = append(l.Reads, r.Range())
			bytes += r.Bytes
		}
		if role&backend.Write != 0 {
			l.Writes = append(l.Writes, r.Range())
			bytes += r.Bytes
		}
	}
	if live := &c.List.Live; !live.None() {
		host, err := b.mem.Bytes(live.Ptr, live.Bytes)
		if err != nil {
			return err
		}
		a.live = host
		l.Reads = append(l.Reads, live.Range())
	}
	l.Brief = bytes <= briefBytes
	return nil
}
