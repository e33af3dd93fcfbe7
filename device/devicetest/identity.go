package devicetest

import (
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

var identityTests = []test{
	{"streams have IDs that are never reused", func(f *fixture) {
		seen := map[uint64]bool{}
		other := f.Open(f)
		defer func() { require.NoError(f, other.Close()) }()
		for i := range 300 {
			d := f.dev
			if i%3 == 0 {
				d = other
			}
			s, err := d.NewStream(device.StreamOptions{Priority: -i % 2})
			require.NoError(f, err)
			require.False(f, seen[s.ID()])
			seen[s.ID()] = true
			require.Equal(f, d.ID(), s.Device().ID())
			require.NoError(f, s.Close())
		}
	}},
	{"a stream has the priority that it was made with", func(f *fixture) {
		s, err := f.dev.NewStream(device.StreamOptions{Priority: -1})
		require.NoError(f, err)
		require.Equal(f, -1, s.Priority())
		require.NoError(f, s.Close())
		require.Zero(f, f.stream().Priority())
	}},
	{"a device says what it is", func(f *fixture) {
		p := f.dev.Properties()
		require.NotEmpty(f, p.Backend)
		require.NotEmpty(f, p.Model)
		require.Positive(f, p.TotalMemory)
		require.Contains(f, f.dev.Name(), p.Backend)
		require.Equal(f, p, f.dev.Properties())
		require.NotZero(f, f.dev.ID())
	}},
}
