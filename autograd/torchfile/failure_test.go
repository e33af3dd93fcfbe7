package torchfile

import (
	"bytes"
	"context"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
)

// TestFilesFail: whichever read fails, the error names it, and the file opens afterwards.
func TestFilesFail(t *testing.T) {
	whole, err := os.ReadFile("testdata/views.pt")
	require.NoError(t, err)
	failtest.Suite[*failtest.Faults]{
		Open: func(_ testing.TB, f *failtest.Faults) *failtest.Faults { return f },
		Live: func(*failtest.Faults) any { return nil },
		Rows: []failtest.Row[*failtest.Faults]{
			{Of: "Open File.Reader File.Close", Make: func(_ testing.TB, faults *failtest.Faults) failtest.Trial {
				var seen []byte
				return failtest.Trial{
					Do: func(context.Context) error {
						f, err := read(failtest.ReaderAt(faults, bytes.NewReader(whole)), int64(len(whole)))
						if err != nil {
							return err
						}
						var all []byte
						for _, name := range []string{"rows", "transposed"} {
							r, err := f.Reader(name)
							if err != nil {
								return err
							}
							b, err := io.ReadAll(r)
							if err != nil {
								return err
							}
							all = append(all, b...)
						}
						seen = all
						return f.Close()
					},
					See: func() any { return bytes.Clone(seen) },
				}
			}},
		},
	}.Run(t)
}
