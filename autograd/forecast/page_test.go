package forecast_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/forecast"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/browsertest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/forecasttest"
)

// opened returns a page in a browser.
func opened(t *testing.T, page []byte) *browsertest.Browser {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.html")
	require.NoError(t, os.WriteFile(file, page, 0o600))
	return browsertest.Open(t, 1400, 1000, "file://"+file, `document.querySelector("main.ready:not([aria-busy])") !== null`)
}

// TestReport: the forecast is that of Step. The page has the peaks, the steps and each layer's
// figures, which equal those of the JSON, with their sums.
func TestReport(t *testing.T) {
	ctx, program := context.Background(), transformer(2, 2, 32, 24, 100).Program(forecasttest.Plain, 3)
	var page bytes.Buffer
	f, err := forecast.Report(ctx, &page, "dry:host?capacity=8GiB", program)
	require.NoError(t, err)
	want, err := forecast.Step(ctx, "dry:host?capacity=8GiB", program)
	require.NoError(t, err)
	require.Equal(t, want.Layers, f.Layers)
	require.Equal(t, []int64{want.AllocatedPeak, want.ReservedPeak, want.PinnedPeak}, []int64{f.AllocatedPeak, f.ReservedPeak, f.PinnedPeak})
	b := opened(t, page.Bytes())
	require.Contains(t, browsertest.Eval[string](b, `document.title`), "fits in 8.00 GiB")
	require.Equal(t, f.AllocatedPeak, browsertest.Eval[int64](b, `report.page.r.peakBytes`))
	require.Equal(t, f.ReservedPeak, browsertest.Eval[int64](b, `report.page.r.mostReserved`))
	require.Equal(t, "1,2", browsertest.Eval[string](b, `report.page.r.steps.columns.step.join()`))
	require.Equal(t, f.Step.AllocatedPeak, browsertest.Eval[int64](b, `report.page.r.steps.columns.peak[1]`))
	require.Greater(t, browsertest.Eval[int](b, `report.page.r.whatIf.filter((e) => !e.error).length`), 5)

	// Each figure of the table is that of the JSON.
	text, err := json.Marshal(f)
	require.NoError(t, err)
	var doc struct{ Layers []map[string]any }
	require.NoError(t, json.Unmarshal(text, &doc))
	require.Len(t, doc.Layers, len(f.Layers))
	figures := []string{"parameters", "parameter_bytes", "activation_bytes", "gradient_bytes", "state_bytes", "workspace_bytes"}
	rows := func(part string) [][]string {
		return browsertest.Eval[[][]string](b, fmt.Sprintf(`[...document.querySelectorAll("#layers %s tr")].map((r) => [...r.cells].map((c) => c.querySelector("data")?.value ?? c.textContent.replaceAll(",", "").replace("–", "0")))`, part))
	}
	shown, sums := rows("tbody"), make([]float64, len(figures))
	require.Len(t, shown, len(doc.Layers))
	var labels []string
	for i, l := range doc.Layers {
		name, _ := l["name"].(string)
		kind, _ := l["type"].(string)
		output, _ := l["output"].(string)
		last := name[strings.LastIndexByte(name, '.')+1:]
		if name == "" {
			last = "model"
		}
		labels = append(labels, strings.TrimSpace(last+" "+kind))
		require.Equal(t, strings.ReplaceAll(output, ",", ""), shown[i][1])
		for j, figure := range figures {
			v := l[figure].(float64)
			require.Equal(t, fmt.Sprint(int64(v)), shown[i][2+j], "%s of %q", figure, name)
			sums[j] += v
		}
	}
	for i, label := range labels {
		require.Equal(t, label, shown[i][0])
	}
	require.Len(t, rows("tfoot"), 1)
	for j, figure := range figures {
		require.NotZero(t, sums[j], figure)
		require.Equal(t, fmt.Sprint(int64(sums[j])), rows("tfoot")[0][2+j], figure)
	}

	// A layer is indented by its depth, and the table can be sorted.
	require.Equal(t, "0px", browsertest.Eval[string](b, `getComputedStyle(document.querySelector("#layers tbody td span")).paddingLeft`))
	require.True(t, browsertest.Eval[bool](b, `[...document.querySelectorAll("#layers tbody td:first-child > span")].every((s) => (s.title.split(".").length === 1) === (parseFloat(s.style.paddingLeft) < 2))`))
	b.Run(`document.querySelector("#layers th:nth-child(4) button").click()`)
	require.True(t, browsertest.Eval[bool](b, `[...document.querySelectorAll("#layers tbody tr")].map((r) => Number(r.cells[3].querySelector("data")?.value ?? 0)).every((v, i, all) => i === 0 || all[i - 1] >= v)`))
}

// TestReportThatDoesNotFit: the page is that of a device with enough memory, with the limit.
func TestReportThatDoesNotFit(t *testing.T) {
	var page bytes.Buffer
	const capacity = 24 << 20
	f, err := forecast.Report(context.Background(), &page, fmt.Sprintf("dry:host?capacity=%d", capacity), training(64))
	require.NoError(t, err)
	require.False(t, f.Fits)
	b := opened(t, page.Bytes())
	require.Contains(t, browsertest.Eval[string](b, `document.title`), "does not fit in 24.00 MiB")
	require.EqualValues(t, capacity, browsertest.Eval[int64](b, `report.page.timeline.limit`))
	require.Equal(t, f.ReservedPeak, browsertest.Eval[int64](b, `report.page.r.mostReserved`))
	require.Greater(t, f.ReservedPeak, int64(capacity))
	require.Equal(t, 2, browsertest.Eval[int](b, `report.page.r.steps.count`), "the run that did not fit is not in it")
}

// full is a disk without space.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space") }

func TestReportErrors(t *testing.T) {
	ctx := context.Background()
	_, err := forecast.Report(ctx, nil, "dry:host", training(4))
	require.ErrorIs(t, err, device.ErrInvalid)
	_, err = forecast.Report(ctx, &bytes.Buffer{}, "host", training(4))
	require.ErrorContains(t, err, "not a dry device")
	_, err = forecast.Report(ctx, full{}, "dry:host", training(4))
	require.ErrorContains(t, err, "no space")
	var page bytes.Buffer
	_, err = forecast.Report(ctx, &page, "dry:host", nil)
	require.ErrorContains(t, err, "the program is nil")
	require.Zero(t, page.Len())
}
