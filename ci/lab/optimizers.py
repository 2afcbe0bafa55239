"""posexport optimize beside onnxruntime.transformers.optimizer and onnxscript's ort_fusions: times and values (docs/optimize.md)."""
import json, logging, sys, time, warnings
from pathlib import Path
from statistics import median
import numpy as np, torch, onnxruntime as ort, onnx
warnings.filterwarnings("ignore"); logging.disable(logging.WARNING)
out = Path("/tmp/optimizers"); out.mkdir(exist_ok=True)
torch.manual_seed(0); torch.set_num_threads(1)
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

class Layer(torch.nn.Module):
    """transformers 4's BertSelfAttention with relative_key, and the rest of a BERT layer"""
    def __init__(s, d, h, most):
        super().__init__(); s.h=h; s.q,s.k,s.v,s.o=(torch.nn.Linear(d,d) for _ in range(4)); s.most=most
        s.distance=torch.nn.Embedding(2*most-1,d//h); s.n1=torch.nn.LayerNorm(d); s.n2=torch.nn.LayerNorm(d)
        s.f1=torch.nn.Linear(d,4*d); s.f2=torch.nn.Linear(4*d,d)
    def forward(s,x,mask):
        b,t,d=x.shape
        q,k,v=(m(x).view(b,t,s.h,d//s.h).transpose(1,2) for m in (s.q,s.k,s.v))
        scores=q@k.transpose(-1,-2)
        at=torch.arange(t)
        e=s.distance(at[:,None]-at[None]+s.most-1)
        scores=(scores+torch.einsum("bhld,lrd->bhlr",q,e))/(d//s.h)**.5+mask
        y=(scores.softmax(-1)@v).transpose(1,2).reshape(b,t,d)
        x=s.n1(x+s.o(y)); return s.n2(x+s.f2(torch.nn.functional.gelu(s.f1(x))))
class Relative(torch.nn.Module):
    def __init__(s,d=384,h=12,n=2,most=512):
        super().__init__(); s.e=torch.nn.Embedding(1000,d); s.layers=torch.nn.ModuleList(Layer(d,h,most) for _ in range(n))
    def forward(s,input_ids,attention_mask):
        m=(1-attention_mask[:,None,None].float())*torch.finfo(torch.float32).min
        x=s.e(input_ids)
        for l in s.layers: x=l(x,m)
        return x
class First(torch.nn.Module):
    def __init__(s,m): super().__init__(); s.m=m
    def forward(s,input_ids,attention_mask): return s.m(input_ids=input_ids,attention_mask=attention_mask,use_cache=False).last_hidden_state if s.m.config.model_type=="llama" else s.m(input_ids=input_ids,attention_mask=attention_mask).last_hidden_state
def models():
    yield "minilm", First(BertModel(BertConfig.from_pretrained("/tmp/shapes/minilm"))), (12,384)
    yield "relative", Relative(), (12,384)
    yield "llama", First(LlamaModel(LlamaConfig(vocab_size=1000,hidden_size=384,intermediate_size=1024,num_hidden_layers=2,num_attention_heads=12,num_key_value_heads=4,max_position_embeddings=1024))), (12,384)
def feeds(sizes, side="right"):
    t=max(sizes); ids=np.random.default_rng(1).integers(5,900,(len(sizes),t)); mask=np.zeros_like(ids)
    for r,n in zip(mask,sizes): r[(slice(t-n,None) if side=="left" else slice(n))]=1
    return {"input_ids":ids,"attention_mask":mask}
def session(p):
    o=ort.SessionOptions(); o.intra_op_num_threads=1; o.log_severity_level=3
    return ort.InferenceSession(str(p),o,providers=["CPUExecutionProvider"])
def by_ort(src,dst,heads):
    from onnxruntime.transformers import optimizer
    m=optimizer.optimize_model(str(src),model_type="bert",num_heads=heads[0],hidden_size=heads[1])
    m.save_model_to_file(str(dst)); return {k:v for k,v in m.get_fused_operator_statistics().items() if v}
def by_fusions(src,dst,heads):
    import onnx_ir as ir
    from onnxscript.rewriter.ort_fusions import optimize_for_ort
    m,c=optimize_for_ort(ir.load(str(src))); ir.save(m,str(dst)); return {k:v for k,v in c.items() if v}
def by_posexport(src,dst,heads):
    import posexport
    r=posexport.optimize(src,dst,force=True); return {k:v.places for k,v in r.passes.items()} | ({"refused":r.refused} if r.refused else {})
for name,m,heads in models():
    if len(sys.argv)>1 and name not in sys.argv[1:]: continue
    m.eval(); src=out/f"{name}.onnx"
    x={k:torch.tensor(v) for k,v in feeds((9,7)).items()}
    b,t=torch.export.Dim.DYNAMIC,torch.export.Dim.DYNAMIC
    torch.onnx.export(m,kwargs=x,dynamo=True,dynamic_shapes={k:{0:b,1:t} for k in x},external_data=False,verbose=False).save(str(src))
    print(name,"nodes",len(onnx.load(str(src)).graph.node),"opset",onnx.load(str(src)).opset_import[0].version,flush=True)
    base=session(src); sessions={"file":base}
    for tool,f in (("posexport",by_posexport),("onnxruntime",by_ort),("ort_fusions",by_fusions)):
        dst=out/f"{name}-{tool}.onnx"; start=time.process_time()
        try:
            c=f(src,dst,heads); s=sessions[tool]=session(dst)
        except Exception as e:
            print(" ",tool,"FAILED",type(e).__name__,str(e)[:300],flush=True); continue
        worst={}
        for label,fd in {"one":feeds((16,)),"right":feeds((33,20)),"left":feeds((20,33),"left"),"long":feeds((300,))}.items():
            try:
                a,c2=base.run(None,fd)[0],s.run(None,fd)[0]; k=fd["attention_mask"]>0
                worst[label]=float(np.abs(a-c2)[k].max()/np.abs(a[k]).max())
            except Exception as e: worst[label]=str(e)[:120]
        print(" ",tool,"nodes",len(onnx.load(str(dst)).graph.node),"s",round(time.process_time()-start,1),c,{k:(f"{v:.1e}" if isinstance(v,float) else v) for k,v in worst.items()},flush=True)
    for n in (8,128,512):
        fd=feeds((n,)); rounds=[]
        runs=40 if n<100 else 15 if n<200 else 8
        dead=set()
        for i in range(runs+2):
            row={}
            for k,s in sessions.items():
                if k in dead: continue
                try:
                    a=time.perf_counter(); s.run(None,fd); row[k]=time.perf_counter()-a
                except Exception as e: dead.add(k)
            if i>1: rounds.append(row)
        print("  tokens",n,"file ms",round(1e3*median(r["file"] for r in rounds),2),{k:round(median(r[k]/r["file"] for r in rounds),3) for k in sessions if k!="file" and k not in dead},"dead",dead,flush=True)
