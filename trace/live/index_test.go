package live

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// embedded is the data of the index page.
func (s *site) embedded() (data index) {
	s.t.Helper()
	_, _, page := s.get("")
	_, text, ok := strings.Cut(string(page), `id="data">`)
	require.True(s.t, ok)
	text, _, _ = strings.Cut(text, "</script>")
	require.NoError(s.t, json.Unmarshal([]byte(text), &data), "%s", text)
	return data
}

// TestIndex: only the page's own script and style may run, no page may frame it, and its data are
// those of the moment.
func TestIndex(t *testing.T) {
	s := newSite(t, Config{})
	for range 2 {
		s.alloc("0", 3*mib)
		data := s.embedded()
		require.EqualValues(t, s.cache.MemoryAllocated(), data.State.Allocated, "however new the sample before")
		require.Equal(t, []memcache.Share{{Name: "activation", Blocks: len(s.live), Bytes: s.cache.MemoryAllocated()}}, data.State.Categories)
	}
	_, header, page := s.get("")
	text, policy := string(page), header.Get("Content-Security-Policy")
	require.Contains(t, policy, "default-src 'none'")
	require.Contains(t, policy, "connect-src 'self'")
	require.Contains(t, policy, "frame-ancestors 'none'")
	require.NotContains(t, policy, "unsafe")
	for directive, tags := range map[string][2]string{"script-src": {`<script type="module">`, "</script>"}, "style-src": {"<style>", "</style>"}} {
		_, part, _ := strings.Cut(text, tags[0])
		part, _, _ = strings.Cut(part, tags[1])
		sum := sha256.Sum256([]byte(part))
		require.Contains(t, policy, directive+" 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"';")
	}
	for _, link := range []string{"heap", "peak", "snapshot", "report", "steps", "stats"} {
		require.Contains(t, text, `<a href="`+link+`">`)
		status, _, _ := s.get(link)
		require.Equal(t, http.StatusOK, status, link)
	}
}

// TestRank: the page has the rank of the latest step, and as many earlier points as its chart.
func TestRank(t *testing.T) {
	s := newSite(t, Config{})
	data := s.embedded()
	require.Equal(t, "host – device memory", data.State.Title)
	require.Empty(t, data.Before)
	for n := range int64(700) {
		s.Step(trace.StepProfile{Step: n, AllocatedPeak: n, Rank: 1, WorldSize: 4})
	}
	data = s.embedded()
	require.Equal(t, "host, rank 1 of 4 – device memory", data.State.Title)
	require.Len(t, data.Before, points)
	require.EqualValues(t, []int64{100, 699}, []int64{data.Before[0].AllocatedPeak, data.Before[points-1].AllocatedPeak})
	_, _, page := s.get("")
	require.Contains(t, string(page), "<title>host, rank 1 of 4 – device memory</title>")
}
