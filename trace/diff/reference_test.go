package diff

import (
	"bytes"
	"fmt"
	"maps"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// read compares texts.
func read(t testing.TB, before, after []byte) []*Diff {
	t.Helper()
	list, err := Read(Options{}, File{"before", bytes.NewReader(before)}, File{"after", bytes.NewReader(after)})
	require.NoError(t, err)
	return list
}

// TestDifferencesOfPrograms: for random programs every row, of each dimension and for files of any
// two kinds, agrees with the programs' own records.
func TestDifferencesOfPrograms(t *testing.T) {
	for seed := range uint64(6) {
		p, q := runProgram(t, 2*seed, 3+int(seed)), runProgram(t, 2*seed+1, 5)
		for kindBefore := range fileKinds {
			for kindAfter := range fileKinds {
				list := read(t, p.files[kindBefore], q.files[kindAfter])
				require.Len(t, list, 1)
				d := list[0]
				require.Equal(t, Row{Name: "peak allocated", Before: Amount{Bytes: p.bytes}, After: Amount{Bytes: q.bytes}}, d.Peaks[0])
				if reserved := kindBefore != heapFile && kindAfter != heapFile; reserved {
					require.Equal(t, Row{Name: "peak reserved", Before: Amount{Bytes: p.reserved}, After: Amount{Bytes: q.reserved}}, d.Peaks[1])
				} else {
					require.Len(t, d.Peaks, 1)
				}
				require.False(t, d.Equal())
				for by, x := range d.Dimensions {
					name := fmt.Sprintf("seed %d, %d and %d, by %s", seed, kindBefore, kindAfter, x.Name)
					by := dimension(by)
					require.Equal(t, by.String(), x.Name)
					if !has(kindBefore)[by] || !has(kindAfter)[by] {
						require.NotEmpty(t, x.Missing, name)
						require.Empty(t, x.Rows, name)
						continue
					}
					require.Empty(t, x.Missing, name)
					requireRows(t, name, by, x, p.sums(by), q.sums(by))
				}
			}
		}
	}
}

// requireRows compares a dimension with the sums of both programs.
func requireRows(t *testing.T, name string, by dimension, x Dimension, before, after map[string]Amount) {
	t.Helper()
	holders := maps.Clone(before)
	maps.Copy(holders, after)
	want, equal, equalBytes := map[string][2]Amount{}, 0, int64(0)
	for holder := range holders {
		a, inBefore := before[holder]
		b, inAfter := after[holder]
		switch {
		case by == byStep && (!inBefore || !inAfter):
		case a != b:
			want[holder] = [2]Amount{a, b}
		default:
			equal++
			if by != byStep {
				equalBytes += a.Bytes
			}
		}
	}
	got := map[string][2]Amount{}
	for i, r := range x.Rows {
		holder := r.Name
		if by == byLine {
			holder = fmt.Sprint(r.Line)
			require.Equal(t, "program_test.go", filepath.Base(r.File), name)
		}
		got[holder] = [2]Amount{r.Before, r.After}
		if i > 0 {
			last, now := x.Rows[i-1].Bytes(), r.Bytes()
			require.True(t, last >= now && last > 0 || last <= now && now < 0 || now == 0, "%s: %d before %d", name, last, now)
		}
	}
	require.Equal(t, want, got, name)
	require.Equal(t, [2]int64{int64(equal), equalBytes}, [2]int64{int64(x.Equal), x.EqualBytes}, name)
}
