package main

import (
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// whole copies ordinary memory, by way of the pool's own buffers.
func (p *transferPlayer) whole() (string, error) {
	p.finish() // a download waits, and so does what needs more memory than the limit
	s := p.stream()
	i, block := p.block()
	at, bytes := p.part(block.Size())
	mem := make([]byte, max(bytes, 0))
	p.chunked = bytes > 2*mib
	if p.random.IntN(2) == 0 {
		p.fill(mem)
		return fmt.Sprintf("upload b%d+%d %d", i, at, len(mem)), p.queued(p.pool.Upload(anywhere, s, block, at, mem))
	}
	err := p.pool.Download(anywhere, s, mem, block, at)
	return fmt.Sprintf("download b%d+%d %d %08x", i, at, len(mem), crc32.ChecksumIEEE(mem)), err
}

// batch makes a batch of copies, and looks at what it read back.
func (p *transferPlayer) batch() (did string, err error) {
	p.finish()
	b := p.pool.NewBatch()
	defer func() { err = errors.Join(err, b.Close()) }()
	did = "batch"
	for range p.random.IntN(6) {
		i, block := p.block()
		at, bytes := p.part(block.Size())
		if p.random.IntN(2) == 0 {
			mem := make([]byte, max(bytes, 0))
			p.fill(mem)
			size := int64(len(mem)) + int64(p.random.IntN(3)) - 1
			did += fmt.Sprintf(", upload b%d+%d %d of %d: %s", i, at, len(mem), size, refused(b.UploadPadded(anywhere, block, at, mem, size)))
		} else {
			index, err := b.Output(anywhere, block, at, bytes)
			did += fmt.Sprintf(", output %d b%d+%d %d: %s", index, i, at, bytes, refused(err))
		}
	}
	for range p.random.IntN(3) {
		if err := p.queued(b.Submit(anywhere, p.stream())); err != nil {
			return did + ", submit", err
		}
	}
	var outputs [][]byte
	err = b.Collect(anywhere, &outputs)
	for _, o := range outputs {
		did += fmt.Sprintf(" %08x", crc32.ChecksumIEEE(o))
	}
	return did, err
}

func (p *transferPlayer) seldom() (string, error) {
	p.finish()
	switch p.random.IntN(6) {
	case 0:
		return "empty the cache", p.pool.EmptyCache(anywhere)
	case 1:
		return p.failing()
	case 2:
		p.pool.ResetPeakStats()
		return "reset peaks", nil
	case 3: // a block that was freed
		i, b := p.block()
		if err := b.Free(); err != nil {
			return "free", err
		}
		s := p.stream()
		_, err := p.pool.Fill(anywhere, s, b, 0, 1, 1)
		fresh, e := p.cache.Alloc(anywhere, b.Size(), s)
		if e != nil {
			return "alloc", e
		}
		p.blocks[i] = fresh
		return fmt.Sprintf("fill freed b%d", i), errors.Join(err, s.Stream().Memset(fresh.Ptr(), 7, fresh.Size()), s.Synchronize(anywhere))
	case 4:
		_, err := p.pool.Upload(anywhere, nil, p.blocks[0], 0, []byte{1})
		return "upload without a stream", err
	}
	_, err := p.pool.Fill(anywhere, p.stream(), memcache.Block{}, 0, 1, 1)
	return "fill no block", err
}

// failing makes a call while the driver fails. Nothing is cached before: which idle buffers a pool has kept is its own affair, and the
// failures are to meet the same driver calls.
func (p *transferPlayer) failing() (string, error) {
	if err := p.pool.EmptyCache(anywhere); err != nil {
		return "empty the cache", err
	}
	p.dev.failures = 1 + p.random.IntN(3)
	defer func() { p.dev.failures = 0 }()
	call := p.get
	if p.random.IntN(2) == 0 {
		call = p.batch
	}
	did, err := call()
	return "with failures: " + did, err
}

// printStats prints what a caller does to the pool, whatever the pool keeps.
func (p *transferPlayer) printStats(s transfer.Stats) {
	fmt.Fprintf(p.w, " stats %d %d %d %d %d %d %v %d %d %d %d %d %d\n", s.ActiveRequests.Current, s.ActiveRequests.Peak, s.ActiveBytes.Current, s.ActiveBytes.Peak,
		s.RequestedBytes.Current, s.RequestedBytes.Peak, s.Registered,
		s.H2DCopies, s.D2HCopies, s.D2DCopies, s.H2DBytes, s.D2HBytes, s.D2DBytes)
}

// end looks at all blocks, and closes everything, with buffers that are out or without.
func (p *transferPlayer) end() error {
	p.finish()
	p.dev.failures = 0
	for i, b := range p.blocks {
		mem := make([]byte, b.Size())
		if err := p.pool.Download(anywhere, p.streams[0], mem, b, 0); err != nil && p.config.MaxBytes == 0 {
			return err
		}
		fmt.Fprintf(p.w, " b%d %08x\n", i, crc32.ChecksumIEEE(mem))
	}
	for len(p.buffers) > 0 && p.random.IntN(20) > 0 {
		last := len(p.buffers) - 1
		fmt.Fprintf(p.w, "release: %s\n", refused(p.buffers[last].Release()))
		p.buffers = slices.Delete(p.buffers, last, last+1)
	}
	fmt.Fprintf(p.w, "close: %s\n", refused(p.pool.Close()))
	fmt.Fprintf(p.w, "get of a closed pool: %s\n", refused(func() error { _, err := p.pool.Get(anywhere, 1); return err }()))
	for _, b := range p.blocks {
		if err := b.Free(); err != nil {
			return err
		}
	}
	return errors.Join(p.cache.Close(), p.dev.Device.Close())
}
