# One party of compose.yaml: sh -e first-round.sh NAME. Between hosts people do what stands here with files in /post.
name=$1 data=${DATA:-/data} post=${POST:-/post} address=${SERVER:-server:7007}
if [ ! -e "$data/party.toml" ]; then
  if [ "$name" = server ]; then
    tacit init server --address "0.0.0.0:${address##*:}" --out "$data"
    cat > "$data/experiment.toml" <<EOF
name = "wards"
[federation]
rounds = 2
[data]
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
mean = [0.0192]
std = [0.0236]
[model]
image_size = 8
patch_size = 4
width = 32
depth = 1
[training]
epochs = 1
[deadlines]
join = 3600
EOF
  else
    tacit init client "$name" --address "$address" --images digits --out "$data"
  fi
fi
if [ ! -e "$data/roster.toml" ]; then
  cp "$data/$name.card" "$post"
  if [ "$name" = server ]; then
    until [ -e "$post/ward-a.card" ] && [ -e "$post/ward-b.card" ] && [ -e "$post/ward-c.card" ]; do sleep 1; done
    tacit roster make "$post"/*.card --operator "$data/office.key" --out "$data/roster.toml"
    cp "$data/roster.toml" "$post/new" && mv "$post/new" "$post/roster.toml"
  fi
  until [ -e "$post/roster.toml" ]; do sleep 1; done
fi
exec tacit up "$data" --roster "$post/roster.toml"
