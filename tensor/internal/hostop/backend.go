package hostop

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Backend runs operations on a stream of a device whose memory the host can access.
type Backend struct {
	env    backend.Env
	mem    device.HostVisible
	stream device.Stream
	spare  spare
}

// New returns the backend for the environment's stream; mem is the stream's device. It fails if the
// environment names an unusable level of vector instructions, as [simd.Chosen] reports.
func New(env backend.Env, mem device.HostVisible) (*Backend, error) {
	if err := simd.Chosen(); err != nil {
		return nil, err
	}
	return &Backend{env: env, mem: mem, stream: env.Stream()}, nil
}

// Prepare implements backend.Backend. It does nothing, because calls share no memory.
func (b *Backend) Prepare(context.Context) error { return nil }

// Close implements backend.Backend.
func (b *Backend) Close() error { return nil }

// Supports implements backend.Backend.
func (b *Backend) Supports(c *backend.Call) bool {
	return table.find(c) != nil && (table.pairs[c.Op] != nil || !c.Mixed())
}

// Do implements backend.Backend. Each item of a list is a launch.
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

// do queues one launch. If the operation needs scratch memory, it is the last operand.
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

// launch is a launch with its buffers. A call reuses one, because the stream does not use it after
// Launch has returned.
type launch struct {
	device.Launch
	reads, writes [backend.MaxArgs + 1]device.Range
}

// briefBytes is the largest amount of memory that a brief launch reads and writes.
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

// operands sets the kernel's operands, and declares to the stream the memory that the kernel reads
// and writes.
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
