package tapetest

import (
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
)

// Fill takes all memory except so many blocks of 512 bytes.
func (b *Bench) Fill(free int) (filler []memcache.Block) {
	b.T.Helper()
	for range 120 {
		block, err := b.Cache.Alloc(b.Ctx, 512, b.RT.Stream())
		require.NoError(b.T, err)
		filler = append(filler, block)
	}
	for size := int64(1 << 20); size >= 512; size /= 2 {
		for {
			block, err := b.Cache.Alloc(b.Ctx, size, b.RT.Stream())
			if err != nil {
				require.ErrorIs(b.T, err, memcache.ErrOutOfMemory)
				break
			}
			filler = append(filler, block)
		}
	}
	kept := filler[:0:0]
	for i := len(filler) - 1; i >= 0; i-- {
		if free > 0 && filler[i].Size() == 512 {
			require.NoError(b.T, filler[i].Free())
			free--
			continue
		}
		kept = append(kept, filler[i])
	}
	require.Zero(b.T, free, "too few blocks of 512 bytes")
	return kept
}
