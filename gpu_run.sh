set -u
O=$OUT; mkdir -p $O
{ cmake -S . -B build/gpu -DCMAKE_BUILD_TYPE=Release -DCMAKE_DISABLE_FIND_PACKAGE_LLVM=ON -DATTN_TESTS=ON && cmake --build build/gpu --parallel 16 --target proto3_paged proto3_paged_parts_test common_attention_test; } > $O/build.log 2>&1 || { tail -30 $O/build.log; exit 1; }
echo "built $SECONDS"
export ATTN_TEST_DEVICE=cuda
mkdir -p /tmp/l
for i in $(seq 0 11); do GTEST_TOTAL_SHARDS=12 GTEST_SHARD_INDEX=$i timeout 240 build/gpu/bin/proto3_paged_parts_test --gtest_filter='PagedTest.*:PrefillTest.*' > /tmp/l/p$i 2>&1 & done
for i in 0 1 2; do GTEST_TOTAL_SHARDS=3 GTEST_SHARD_INDEX=$i timeout 240 build/gpu/bin/common_attention_test --gtest_filter='*HooksTest*:*HookMutations*' > /tmp/l/h$i 2>&1 & done
wait
echo "tested $SECONDS"
for f in /tmp/l/*; do echo "== $f"; grep -v "RUN  \|SKIPPED\|^\[---\|^Note" $f; done > $O/tests.txt
grep -h "FAILED  \]\|PASSED" /tmp/l/* | sort | uniq -c
run() { timeout ${T:-100} build/gpu/bin/proto3_paged --device cuda:0 --json --quiet --measurements $O/m.jsonl --out $O/f.jsonl "$@" > /tmp/run.json 2>/tmp/run.err || tail -3 /tmp/run.err; python3 - <<'P'
import json
for l in open('/tmp/run.json'):
    if not l.startswith('{'): continue
    r=json.loads(l)
    if 'case' not in r: continue
    c=r['case']; t={x['scope']:x['median_s']*1e6 for x in r.get('time') or []}
    w=r.get('work') or {}
    print(c['task'],c['batch'],c['q_len'],c['kv_len'],f"{c['q_heads']}/{c['kv_heads']}",c['head_dim'],'page',c['page_size'],c['append'],'C',c['block_c'],'alibi',c['alibi'],'cap',c['soft_cap'],'w',c['window_left'],'casc',c['cascade'],c['shared_pct'],r['status'],{k:round(v,1) for k,v in t.items()}, 'TF', round(w.get('flops',0)/max(t.get('device_hot',t.get('device_cold',1e9)),1e-9)/1e6,1),(r.get('check') or {}).get('ok'), r.get('reason'))
P
}
P="--axis alibi=0 --axis soft_cap=0 --axis window_left=-1 --axis cascade=0 --axis shared_pct=25 --axis page_order=identity --axis cache_layout=nhd --axis workers=0 --axis reduce=last --axis lengths=equal --axis dtype=bf16 --axis cache_dtype=bf16"
T=150 run $P --budget 60 --axis task=prefill --axis batch=8 --axis q_len=512 --axis kv_len=32768 --axis q_heads=32 --axis kv_heads=8 --axis head_dim=128 --axis page_size=0,1,8,16,24,64,128,256 --axis append=none
echo "chunks $SECONDS"
T=60 run $P --budget 30 --axis task=prefill --axis batch=1 --axis q_len=8192 --axis kv_len=8192 --axis q_heads=32 --axis kv_heads=8 --axis head_dim=128 --axis page_size=0,16,128 --axis append=none,fused,chain
T=60 run $P --budget 30 --axis task=prefill --axis batch=1 --axis q_len=1024 --axis kv_len=1024 --axis q_heads=32 --axis kv_heads=8 --axis head_dim=128 --axis page_size=16 --axis append=none,fused,chain
T=60 run $P --budget 30 --axis task=prefill --axis batch=1 --axis q_len=1024 --axis kv_len=1024 --axis q_heads=32 --axis kv_heads=4 --axis head_dim=64 --axis page_size=16 --axis append=none,fused,chain
echo "done $SECONDS"
